"""The history of a run as its observer keeps it: the numbers of every rank, in bounded memory.

saved    the history in the run's file
reading  a thread that reads the file
answers  the answer to a question about the history
kept     the history in memory, fed with the records of the ranks
columns  columns of a plot, and their form on the wire
by_step  every rank's numbers over the steps
by_time  every rank's numbers over time
series   one number in bounded memory
packing  arrays as bytes
numbers  the names of the numbers
"""
