"""The library of whoever looks on at runs or acts on them: the dashboard, exporters, programs of a user.

`ddptop help json` shows what most of them need; all else here may change with any version.

runs        the runs of this machine, found by name, and what is kept with each
watch       a run, alive or ended, as frames
frame       all that is known of a run at one moment
sources     where its frames come from
look        one look at some runs
history     the numbers of a run, by step and by time
comparison  runs compared with each other, and with limits
keeping     runs that are kept, and carried to other machines
logs        the output of the ranks, line by line
diagnosis   where the ranks stand, and the diagnoses that are kept with a run
acting      what is done with a run
start       the start of a run, for the first time or again
host        the user and the machine
"""
