"""The present state of a run, the same for every caller.

survey      the state by records and the process table
membership  the processes of the run, described for a list
command     the line that launches a run of the same kind again
report      what is known of a run and its end
takeover    starts another observer where the last one is gone
"""
