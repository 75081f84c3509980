"""Ending or freezing the processes of a run, and the cause of its end.

processes   the processes of a run, found and signalled
escalation  SIGTERM, a grace period, SIGKILL, and a count of survivors
freezer     SIGSTOP and SIGCONT
run_ending  an end of the run that somebody asks for, on all its hosts
exits       the time and the status with which each rank ended, also of orphans, which are adopted for that
rank_ends   the ends of ranks: announced, recorded, and judged by their cause
cause       the end of the run, and its first cause
hung        the hang in which a run stands, or came to its end
last_words  the output and the collectives with which ranks ended, the rank that failed first apart from the others
kinds       the kinds of ends: how each is recognized, and what can be done about it
kernel      out-of-memory kills as the kernel counts them, and lines of its log about a process or its GPU
traces      stacks in the output of a rank
"""
