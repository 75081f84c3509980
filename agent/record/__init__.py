"""The recording of a run, and the bounds on its bytes.

recorder   the thread that writes the recording, and answers questions about the history in it
inbox      the bounded queue before that thread
recording  the tables of the file, and reading from them
history    the numbers of the run over steps and time, in tables of the file
budget     the number of steps that the ranks record
ring       the bound on the bytes of the file; their number is in `run.records`
floods     the choice of the events that are written
logs       the bound on the bytes of the log files
profiles   the traces of profiled steps, joined and compared
diagnoses  the profiles, probes and censuses that are kept, each in a numbered folder
retention  the removal of ended runs where all runs together take too many bytes; `run.rundir` has their number
"""
