"""The end of a run that its observer looks after.

run_ending  an end of the run that somebody asks for, on all its hosts
exits       the time and the status with which each rank ended, also of orphans, which are adopted for that
rank_ends   the ends of ranks: announced, recorded, and judged by their cause
kernel      out-of-memory kills as the kernel counts them, and lines of its log about a process or its GPU
"""
