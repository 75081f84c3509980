"""What is asked of the observer, and what all ranks of a run do together: it is asked once, and answers once.

orders      all that is asked: actions, and the endings and signals
actions     the requests for actions, one action at a time in its thread, and what comes of it
controller  pause, step, resume, checkpoint and stop in two phases, and the lease of a hold
ahead       a question to all ranks at the same steps, a little ahead of them
checksums   the checksums of all ranks' parameters at the end of one step, and their comparison
diagnosis   what the next three have in common
memory      the objects of several ranks, and those that came within the same steps
profile     the same steps of several ranks, profiled by torch, as one trace
probe       experiments of all ranks while they are held: who is slower than others, and why
wait        what an action waits for, for all to see, and the wish to cancel it
polled      the ranks of an action: all are asked at once, and those that end meanwhile drop out
ranks       the live ranks of a run
"""
