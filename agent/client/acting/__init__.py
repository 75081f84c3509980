"""What is done with a run by whoever looks on.

control     a pause, a step, a checkpoint, a stop, a freeze, a restart
ending      the end of a run, a rank or a process, or a signal to it
membership  the processes of a run, for a list from which a person chooses
kill        an ending that is under way: its target, the consent that it may begin, and the account of it
waiting     what an action waits for, and its cancellation
actor       the user who acts, for the events of a run
"""
