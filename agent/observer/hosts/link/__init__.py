"""The link: the one connection between the head of a run on several hosts and each of its branches.

This package moves frames, and knows neither the relay nor the judge.

opening    how a link is opened and found, also where the hosts of a run have agreed on it beforehand
head       the side that listens
branch     the side that connects
side       the part that both sides share
admission  the port, the check that a peer has the run's key, and a count of peers without it
peer       the other side of a connection, the frames that wait for it, and its clock
frames     the kinds of frames, and their bounds
addresses  the addresses at which the head listens
keys       the CURVE keys of a run, made for it or derived from a file that its hosts share
"""
