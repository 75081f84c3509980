"""Runs compared: numbers of their steps, with what noise allows to say of them.

reading     the record of a run, alive or ended, by the questions that every onlooker asks
facts       the circumstances that decide whether two runs can be compared
measured    the numbers of a run's steps, and the usual ones among them
statistics  intervals of a number over steps whose neighbours are not independent
compared    two runs, or a run and those before it, number by number and in one sentence
beside      their curves, as a plot reads them
gate        limits that a run has to keep
"""
