"""The recording of a run, and the bounds on its bytes.

recorder    writes, in a thread of its own
inbox       what waits for it, bounded
recording   the tables of the file, and how they are read
ring        bounds the bytes of the file
thinning    chooses the steps that stay when there is no room for all
floods      chooses the events that are written
logs        bounds the bytes of the log files
retention   removes ended runs where all runs together take too many bytes; how many stay: run.rundir
"""
