"""What is asked of the observer, and what all ranks of a run do together: it is asked once, and answers once.

orders      the endings and signals that are asked for, which the main thread carries out
actions     the requests for actions, one action at a time in the relay's thread, and what comes of it
pause       pause, step, resume, checkpoint and stop in two rounds, and the lease of a hold
checksums   the checksums of all ranks' parameters at the end of one step, and their comparison
diagnosis   the same steps of all ranks, a little ahead of them, for checksums, memory and profile
join        ranks that nobody prepared join their run, and leave it
memory      the objects of several ranks, and those that came within the same steps
profile     the same steps of several ranks, profiled by torch, as one trace
probe       experiments of all ranks while they are held: who is slower than others, and why
action      one action: what was asked for, what it waits for, for all to see, and the wish to cancel it
ranks       the ranks of an action: what they are asked, and what they say of themselves
"""
