"""What is done with a run by whoever looks on.

control  a pause, a step, a checkpoint, a stop, a freeze, a restart
ending   the end of a run, a rank or a process, or a signal to it
kill     an ending that is under way: its target, the consent that it may begin, and the account of it
actor    the user who acts, for the events of a run
"""
