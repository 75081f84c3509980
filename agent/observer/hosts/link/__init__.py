"""The link: the one connection between the head of a run on several hosts and each of its branches.

This package moves frames, and knows neither the relay nor the judge.

keys       the CURVE keys of a run, made for it or derived from a file that its hosts share
addresses  the addresses at which the head listens
agreed     keys and addresses on which the hosts of a run have agreed beforehand
listening  the socket that accepts connections, closed for a moment where unknown peers open too many
admission  the check that a peer has the run's key, and a count of peers without it
frames     the kinds of frames, and their bounds
pings      round trips, and the difference between two clocks
peer       the other side of a connection, and the frames that wait for it
side       the part that both sides share
head       the side that listens
branch     the side that connects
"""
