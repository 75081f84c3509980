"""The library of whoever looks on at runs or acts on them: the dashboard, exporters, programs of a user.

`ddptop help python` shows what most of them need; all else here may change with any version.

runs          the runs of this machine, found by name, and what is kept with each
watch         a run, alive or ended, as frames
frame         all that is known of a run at one moment
recorded      the same by the record of the run alone
subscription  the frames that an observer publishes, and questions to it
look          one look at some runs
other_users   the runs of other users, for root
history       the numbers of a run, by step and by time
logs          the output of the ranks, line by line
stacks        where the ranks stand
diagnoses     the diagnoses that are kept with a run
acting        what is done with a run
start         the start of a run, for the first time or again
takeover      the start of another observer, where a run has none
settings      the settings of this user
state         what is remembered for this user
program       our programs as processes
machine       this machine and its load
"""
