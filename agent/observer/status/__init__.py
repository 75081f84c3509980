"""The present state of a run, the same for every caller.

survey      the state by records and the process table
membership  the processes of the run, described for a list
command     the command line that launches a run of the same kind again
report      the facts about a run and its end
takeover    the start of another observer in place of one that is gone
"""
