"""The other hosts of a run, for the relay: each side of a link takes the other one for an onlooker.

hosts    which side of a link this host is, and the records of the other hosts in the run directory
head     the side on the host of rank 0: takes in the ranks of all branches, and publishes to their doors
connected  a branch, as the head knows it, and how much may come from it
branch   the side on any other host: its door shows what the head publishes as long as it is linked
parts    the parts of the relay that both use, and the copies of the records of ranks
common   the events and verdicts that the records of all hosts have alike
asking   questions of the observer's main thread to other observers
links    how a link is opened
"""
