"""The commands that a rank carries out.

executing   the commands carried out, and the replies to them
gate        the step boundary at which the rank is held
answers     replies and history, sent as fast as each peer reads
preemption  a SIGTERM from outside that leads to a checkpoint and a stop
"""
