"""What onlookers have of the relay.

door        the two sockets: one publishes, one answers
commands    the commands of onlookers, each handed to the part that carries it out
newest      the newest of each rank, for the observer of another host
forwarding  commands to single ranks, and the answers in place of ranks that do not answer
requests    commands to the observer itself, which its main thread carries out
"""
