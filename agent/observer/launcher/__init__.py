"""The launchers that start the ranks, the machine on which the ranks run, and the time that they have there.

launcher    torchrun, or the program that spawns its own ranks: the command line and the process
attached    a job that something else launched, and the end of that job
resizing    another number of ranks after a restart by an elastic launcher
unseen      processes of a spawning program in which no agent starts
rendezvous  the store at which the torchruns of several hosts meet, by the sockets of this host
scheduler   the time at which a scheduler takes the machine back, and the task that holds the run
machine     GPUs and cores
"""
