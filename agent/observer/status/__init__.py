"""The present state of a run, the same for every caller.

survey      the state by records and the process table
membership  the processes of the run, described for a list
report      the facts about a run and its end, and the command line that launches such a run again
takeover    the start of another observer in place of one that is gone
"""
