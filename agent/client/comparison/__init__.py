"""Runs compared: numbers of their steps, with what noise allows to say of them.

reading     the record of a run, alive or ended, by the questions that every onlooker asks
facts       the circumstances that decide whether two runs can be compared
measured    the numbers of a run's steps, the usual ones among them, and their curves
statistics  intervals of a number over steps whose neighbours are not independent
compared    two runs, or a run and those before it, number by number and in one sentence
gate        limits that a run has to keep
"""
