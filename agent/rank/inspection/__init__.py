"""The place at which a rank stands, and what its time is spent in, seen from inside its process once somebody asks.

inspecting  the whole answer
probing     the experiments of a probe, while the rank is held
memory      a census of the objects that live, and of those that came within some steps
profiling   a profile of whole steps by torch's own profiler
stacks      the stacks of all threads, and the meaning of their frames
looking     the time that the training thread spends in each line, for a verdict
modules     the module whose backward pass torch executes meanwhile
workers     the same of the data workers
work        the floating-point operations of one step, counted once
tally       stacks and their times, summed up by lines
frames      the innermost frames of the threads, taken without harm, and the last thread that ended by an exception
"""
