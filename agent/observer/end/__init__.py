"""Ending or freezing the processes of a run, and the cause of its end.

processes   finds the processes of a run, and signals them
escalation  SIGTERM, a grace period, SIGKILL, and a count of survivors
freezer     SIGSTOP and SIGCONT
reaper      adopts orphans and reads their exit status
exits       the time at which each rank ended
cause       the end of the run, and its first cause
"""
