"""The other hosts of a run: each side of a link between two observers takes the other one for an onlooker.

What comes from there `role` returns to the relay, which is above; it knows nothing of the relay, nor of the judge.

role       which side of a link this host is, and the records of the other hosts in the run directory
head       the side on the host of rank 0: takes in the ranks of all branches, and publishes to their onlookers
branch     the side on any other host: its onlookers get what the head publishes as long as it is linked
sides      what both have in common: this host, what there is to be told, and copies of the records of ranks
common     the events and verdicts that the records of all hosts have alike, and the newest of each rank
ends       the end of the run on the other hosts: reports, waiting, and the head's result
questions  questions of the observer's main thread to other observers, one or several at once
elsewhere  ranks, requesters and observers on other hosts, in the place of sockets
link       the link itself, which knows no run
"""
