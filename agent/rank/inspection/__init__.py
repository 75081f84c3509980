"""The place at which a rank stands, and what its time is spent in, seen from inside its process once somebody asks.

inspecting  the whole answer
diagnoses   all that is found out on request or for a verdict, at the boundaries of steps
probing     the experiments of a probe, while the rank is held
memory      a census of the objects that live, and of those that came within some steps
profiling   a profile of whole steps by torch's own profiler
work        the floating-point operations of one step, counted once
looks       the time that the training spends in each line, for a verdict
stacks      the stacks of all threads, and the meaning of their frames
locks       the locks for which threads wait, and their holders
warned      what torch itself warns of, in the log of this rank
frames      the innermost frames of the threads, taken without harm, and the last thread that ended by an exception
"""
