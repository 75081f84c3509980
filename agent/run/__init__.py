"""What a run leaves on disk, and what is said of it from there.

rundir      the run directory: members, addresses, how it ended
records     the record of a run and of each rank
states      the state of a rank and of a run, from evidence
decisions   what all ranks must do or none
generations which start of the group is the present one
identity    which process is meant
injection   what `--inject` says
files       marks, locks, private files, removal
"""
