"""The faults of a run, judged once for all who look on. Pure: no sockets, no threads, no clock.

judge       the whole of it: messages of ranks in, verdicts out
join        the records of one step, of all ranks
large       of a large group the summaries of one second, and the records of a few ranks
blocks      steps of all ranks, added up to blocks
kinds       the kinds of faults, a module for each
standstill  time without a step: when ranks are looked at, when numbers are old, when a rank is stalled, what is news
hang        a run that makes no steps: the rank that causes it, and what the others wait for
lines       the line of code behind a slow rank, by looks at its training thread
crowding    ranks whose threads are more than the cores of their host
probe       ranks that were held for experiments: who is slower than its like, and why
growth      the cause of memory that grows, by two censuses of a rank's objects
comparison  the checksums of several ranks, compared tensor by tensor
intervals   a fault at one moment, and verdicts with a beginning, an end and a number, made of those of each moment

NumPy is loaded here, which a rank must not be made to do.
"""
