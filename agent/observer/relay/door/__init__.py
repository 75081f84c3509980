"""What onlookers have of the relay.

door        the two sockets: one publishes, one answers
commands    the commands of onlookers, each handed to the part that carries it out
newest      the newest of each rank, for onlookers that come
greeting    what onlookers are told when they come
forwarding  commands to single ranks, and the answers in place of ranks that do not answer
requests    commands to the observer itself, which its main thread carries out
"""
