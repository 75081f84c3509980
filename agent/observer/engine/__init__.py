"""Who starts the ranks, on which machine, and for how long.

launcher    torchrun, or the program that spawns its own ranks: the command line and the process
starting    the observer itself, of a run that was just created
foreign     a job that something else launched, and when it is over
resizing    another number of ranks after a restart by an elastic launcher
unseen      processes of such a program in which no agent starts
meeting     whether the torchruns of several hosts have met
scheduler   when it takes the machine back, and the task of its that holds the run
machine     GPUs and cores
"""
