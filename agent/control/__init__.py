"""What a controller does: asks all ranks of a run at once, and makes known what came of it.

controller  pause, step, checkpoint, stop, resume, on any `Group`; how long each waits for ranks
polled      the ranks that an action is about
caller      commands to the sockets of peers, and the replies
deadline    when a command has come too late to be carried out
listening   a socket that hears telemetry, bounded for each sender
journal     events of who did what, kept with the run
"""
