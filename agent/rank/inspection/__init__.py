"""The place at which a rank stands, found on the agent's thread while the training stands or goes on.

inspecting  the whole answer
profiling   a profile of whole steps by torch's own profiler
stacks      the stacks of all threads, and the meaning of their frames
looking     the time that the training thread spends in each line, for a verdict
workers     the same of the data workers
tally       stacks and their times, summed up by lines
frames      the innermost frames of the threads, taken without harm, and the last thread that ended by an exception
"""
