"""What is asked of the observer, on one host and over all hosts of a run; `actions` carries out what ranks do together.

orders    the commands, and the endings and signals that carry them out
ending    an end of the run that somebody asks for, on all its hosts
budget    the number of steps that the ranks record
"""
