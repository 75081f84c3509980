"""How a run is ended or stopped where it stands, and what it ended of.

processes   finds the processes of a run, and signals them
escalation  TERM, a grace period, KILL, and who survives
freezer     SIGSTOP and SIGCONT
reaper      adopts orphans and buries the dead
exits       when each rank died
cause       how the run ended, and what came first
"""
