"""The launch of a run.

options     the options of a launch, each described once, and the request that they make up
checks      the conditions under which the values of the options work here
hosts       the hosts of a request, and one name on all of them
slurm       a request inside an allocation of Slurm: the srun that carries it out
target      the program of a request, found without running it
launch      from a request to a run with an observer
form        the fields of the form, their faults, and the command line that says the same
programs    the options of the catalogue's programs, and the programs that a half typed word may mean
remembered  the fields of the last form, and the launches before
"""
