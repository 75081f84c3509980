"""The other hosts of a run: each side of a link between two observers takes the other one for an onlooker.

hosts        which side of a link this host is, and the records of the other hosts in the run directory
head         the side on the host of rank 0: takes in the ranks of all branches, and publishes to their onlookers
connected    a branch, as the head knows it, and how much may come from it
branch       the side on any other host: its onlookers get what the head publishes as long as it is linked
parts        the parts of the relay that both use, and the copies of the records of ranks
common       the events and verdicts that the records of all hosts have alike
newest       the newest of each rank, for the observer of another host
elsewhere    ranks and observers on other hosts, in the place of sockets
subscribers  the observers of other hosts that subscribe to what is published
askers       the names of those who ask from other hosts
asking       questions of the observer's main thread to other observers
far          the observers of other hosts, in the form that commands need
spread       one command to several hosts at once, and the sum of the answers
others       the end of the run on the other hosts: reports, waiting, and the head's result
ends         the ends of the ranks on other hosts, as their observers report them
watch        hosts that are lost or back, as events
links        how a link is opened
link         the link itself, which knows neither relay nor judge
"""
