"""What onlookers, and the observers of other hosts, have of an observer: topics, and answers to requests.

commands    the commands of onlookers, each handed to the part that carries it out
forwarding  commands to single ranks, and the answers in place of ranks that do not answer
fills       questions of observers to ranks for their earlier records
service     the two sockets: one publishes, one answers
requests    commands to the observer itself, which its main thread carries out, and the way back for all answers
"""
