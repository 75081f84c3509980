"""The start of runs.

launcher    torchrun, or a program that spawns its own ranks: the command line, and the process
detached    an observer that a rank or an onlooker starts
observers   the observer that looks after a run
boards      devices as the driver knows them: their load, and the memory of a process
machine     GPUs and cores of this machine, and the choice of device and backend
position    rank, world and host number of a process, by the variables of each launcher
rendezvous  the store at which the torchruns of several hosts meet
slurm       the variables by which Slurm tells a process its job and its step
"""
