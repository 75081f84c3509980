"""What a rank does that it is asked for.

gate        the step boundary at which it is held
follower    does what was decided for all ranks
answers     replies and history, as fast as each peer reads
preemption  a TERM from outside that is to end in a checkpoint
"""
