"""The controller's side of an action: it asks all ranks of a run at once, and makes the outcome known.

controller  pause, step, checkpoint, stop, resume, on any `Group`; how long each waits for ranks
polled      the ranks of an action
caller      commands to ranks, through the observer, and their replies
deadline    the age at which a command is refused
listening   a socket that receives telemetry, bounded for each sender
journal     actions, their authors and outcomes, recorded with the run
"""
