"""The files of a run on disk, and the states that follow from them.

rundir         the run directories of a user: members, addresses, ends, and the number of ended ones that stay
base           the folder that holds them, and their names
records        the record of a run and of each rank, and the bytes that a run may take
states         when a rank or a run is lost, silent, stalled, paused; the seconds are in `switches.thresholds`
generations    the present start of the group, among the claims of ranks
ends           the end of each rank's process, as the observer saw it
hosts          the other hosts of a run: the address of the head, and the records of their ranks
identity       processes, distinguished from later ones with the same pid
diagnoses      the kinds of diagnoses: their keys, verbs and folders, and what each takes
cores          cores, the processes that run on them, and the time that these take
script         the script of a rank: sources, stacks, its last line
switches       requests of the environment to the ranks, beside training
files          marks, locks, private files, removal
"""
