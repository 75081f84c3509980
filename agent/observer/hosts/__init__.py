"""The link: the one connection between the head of a run on several hosts and each of its branches.

This package moves frames, and knows neither the relay nor the judge.

keys      the CURVE keys of a run, made for it or derived from a file that its hosts share
addresses where the head listens
agreed    both, where the hosts of a run have agreed on them beforehand
listening the socket that accepts connections, and for a moment none where strangers open too many
admission who may connect: the holder of the run's key; strangers are counted
frames    the kinds of frames, and their bounds
pings     round trips, and the difference between two clocks
peer      the other side of a connection, and what waits for it
link      what both sides do
head      the side that listens
branch    the side that connects
"""
