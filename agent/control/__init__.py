"""The controller's side of an action: it asks all ranks of a run at once, and makes the outcome known.

controller  pause, step, checkpoint, stop and resume on any `Group`, and the seconds that each waits for ranks
checksums   the checksums of all ranks' parameters at the end of one step
polled      the ranks of an action
caller      commands to ranks through the observer, and the replies
deadline    the age at which a command is refused
listening   a socket that receives telemetry, bounded for each sender
journal     actions, their authors and outcomes, recorded with the run
"""
