"""The start of a run: what is asked for, what it needs to work here, and the run that comes of it.

request   what somebody asks to launch, and the program of it
checks    what the values of a request need to work here, found out before anything starts
source    the git commit of a program's folder
hosts     the hosts of a launch that is given on each of them
slurm     the `srun` that gives it on each node of an allocation
notifier  the process that tells of a run, and where to
run       a launch, and the restart of an ended run
"""
