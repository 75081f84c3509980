"""The commands that a rank carries out.

executing   what a rank does with each command, and the reply to it
gate        the step boundary at which the rank is held
follower    carries out the decisions for all ranks
answers     replies and history, sent as fast as each peer reads
preemption  a SIGTERM from outside that leads to a checkpoint and a stop
"""
