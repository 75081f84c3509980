"""The process of a rank: its run, its output, its record and its end.

enrolment   finds or makes the run
standing    rank, world and host number, as each launcher tells them
meeting     how the observers of several hosts find each other
observing   starts the observer of a run that something else launched
ancestry    tells a rank from the processes that it starts
spawned     ranks that the program has spawned itself
output      the log, as long as the disk has room
crashes     the Python line of a crash in native code, in the log
account     the record of the rank in the run directory
descriptors  the agent's own, which a script may not close
ending      exit status and exception as text
leaving     what the interpreter waits for after the script
"""
