"""The questions of screens to runs, so that a live run, an ended one and a fake look the same to them.

source  the questions that a screen may ask of a run, also where it may only look, and before a run is chosen
fleet   the questions that a screen may ask of all runs
runs    all runs of this machine, and its cores, memory and GPUs
reader  a thread that follows and searches one log, or the ends of all
"""
