"""The history of a run as its observer keeps it: the numbers of every rank, in bounded memory.

saved       the history in the run's file
reading     the file, read on a thread of its own
answers     the answer to a question about it
kept        the history, fed with what ranks tell
columns     columns of a plot, and their way over the wire
by_step     every rank's numbers over the steps
by_time     every rank's numbers over time
series      one number in bounded memory
packing     arrays as bytes
numbers     the names of the numbers
"""
