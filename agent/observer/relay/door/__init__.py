"""What onlookers, and the observers of other hosts, have of the relay.

door         the two sockets: one publishes, one answers
subscribers  the observers of other hosts that subscribe to what is published
elsewhere    ranks and observers on other hosts, in the place of sockets
askers       the names of those who ask from other hosts
commands     the commands of onlookers, each handed to the part that carries it out
newest       the newest of each rank, for the observer of another host
forwarding   commands to single ranks, and the answers in place of ranks that do not answer
requests     commands to the observer itself, which its main thread carries out
"""
