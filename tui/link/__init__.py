"""Where frames come from.

source      what a screen may ask of a run
live        a run, alive or ended
home        before a run is chosen
fleet       what a screen may ask of all runs; `runs` are those of this machine
host        cores, memory and GPUs of the machine
look        one look at some runs, for `ps` and `status`
"""
