"""Collectives written by hand from send and recv, a module for each algorithm; they work on the default group.

They do what torch.distributed does in one call, to be read and to be compared with it.  They know no
models and no training.

naive  by way of a root
tree   over a binomial tree
ring   around a ring
table  all of them, and the backend's own, in one form
Source: Thakur, Rabenseifner, Gropp 2005, Optimization of Collective Communication Operations in MPICH.
"""
