"""The other hosts of a run: each side of a link between two observers takes the other one for an onlooker.

What comes from there `role` returns to the relay, which is above; it knows nothing of the relay, nor of the judge.
Each side subscribes to these topics of the other; questions and commands are those of onlookers:

to the head's    `outline`, and what onlookers of the branch subscribe to, which they get as the head publishes it
to a branch's    `ranks`, each of its ranks once a second and at a change of its state, `rank/` while somebody looks on;
                 and for the judge `bundle`, and of suspects in a large group `steps/`
to either's      `record`, what the records of all hosts have alike

role       which side of a link this host is, and the records of the other hosts in the run directory
head       the side on the host of rank 0: takes in the ranks of all branches, and publishes to their onlookers
branch     the side on any other host: its onlookers get what the head publishes as long as it is linked
sides      what both have in common: this host, what there is to be told, and copies of the records of ranks
common     the events and verdicts that the records of all hosts have alike
ends       the end of the run on the other hosts: reports, waiting, and the head's result
questions  questions of the observer's main thread to other observers, one or several at once
elsewhere  ranks, requesters and observers on other hosts, in the place of sockets
link       the link itself, which knows no run
"""
