"""Who starts the ranks, and on which machine.

launcher  torchrun, or the program that spawns its own ranks: the command line and the process
starting  the observer itself, of a run that was just created
foreign   a job that something else launched, and when it is over
machine   GPUs and cores
"""
