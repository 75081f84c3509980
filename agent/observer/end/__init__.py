"""Ending or freezing the processes of a run, and the cause of its end.

processes   finds the processes of a run, and signals them
escalation  SIGTERM, a grace period, SIGKILL, and a count of survivors
freezer     SIGSTOP and SIGCONT
reaper      adopts orphans and reads their exit status
exits       the time and the status with which each rank ended
rank_ends   the ends of ranks: told, recorded, and judged by their cause
cause       the end of the run, and its first cause
hung        the hang in which a run stands, or came to its end
parting     what the ranks left behind, the first of them apart from the others
kinds       the kinds of ends: how each is recognized, and what can be done about it
memory      out-of-memory kills, as the kernel counts them
kernel_log  what the kernel's log says of a process, and of its GPU
traces      stacks in what a rank left behind
"""
