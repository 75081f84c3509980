"""Where frames come from.

source      what a screen may ask of a run, also where it may only look, and before a run is chosen
live        a run, alive or ended
sockets     what its observer tells of it, and how long missing records are waited for
replay      what is recorded of it
turns       whose processes are looked up next, where there are too many to look up all
control     what acts on it
inspection  asks the ranks where they stand
fleet       what a screen may ask of all runs; `runs` are those of this machine
host        cores, memory and GPUs of the machine
look        one look at some runs, for `ps` and `status`
"""
