"""The process of a rank: its run, its output, its record and its end.

enrolment    the run of this rank, found or made
rendezvous   the rendezvous of the observers of several hosts
observing    the start of an observer for a run that something else launched
ancestry     the difference between a rank and the processes that it starts
spawned      ranks that the program has spawned itself
output       the log, as long as the disk has room
crashes      the Python line of a crash in native code, in the log
account      the record of the rank in the run directory
visibility   the observer may look into the rank, where the system asks for that
scarcity     descriptors and threads, tried before there are sockets
descriptors  the agent's own descriptors, which a script may not close
ending       exit status and exception as text
leaving      the threads and processes for which the interpreter waits after the script
"""
