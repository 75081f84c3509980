"""The files of a run on disk, and the states that follow from them.

rundir      the run directories of a user: members, addresses, ends, and how many ended ones stay
base        the folder that holds them, and their names
records     the record of a run and of each rank
states      the state of a rank and of a run, from evidence; its limits in seconds come from the caller
decisions   actions that either all ranks or none must carry out
generations the present start of the group, among those that ranks claim
ends        what the observer saw of the end of each rank's process
detached    the start of a run's observer, where ddptop did not launch the job
hosts       what is known of a run's other hosts: where the head listens, and the records of their ranks
identity    processes, told from later ones with the same pid
script      what a rank's script is and says: sources, stacks, its last line
switches    what the environment asks the ranks for, beside training
files       marks, locks, private files, removal
"""
