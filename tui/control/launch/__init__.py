"""The launch of a run.

options     the options of a launch, each described once, and the request that they make up
checks      what their values need to work here
hosts       the hosts of a request, and one name on all of them
slurm       a request inside an allocation of Slurm: the srun that carries it out
target      the program of a request, found without running it
launch      from a request to a run with an observer
form        what is filled in, what is wrong with it, the command line that says the same
programs    the options of the catalogue's programs
suggestions what a half typed program may mean
remembered  what was filled in last, and what was launched
"""
