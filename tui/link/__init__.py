"""The frames of runs, and whatever asks or acts on a run that is shown.

live          a run, alive or ended, as a `Source`
subscription  the frames that an observer publishes, and questions to it
source        the questions that a screen may ask of a run, also where it may only look, and before a run is chosen
control       actions on it
inspection    questions to the ranks where they stand
runs          all runs of this machine, and its cores, memory and GPUs
fleet         the questions that a screen may ask of all runs
look          one look at some runs, for `ps` and `status`
logs          the output of the ranks, read from their files
"""
