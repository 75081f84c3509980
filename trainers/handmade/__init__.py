"""Collectives written by hand from send and recv, each algorithm a module; they work on the default group.

What torch.distributed does in one call, to be read and to be measured against it.  Knows no
models and no training.
Source: Thakur, Rabenseifner, Gropp 2005, Optimization of Collective Communication Operations in MPICH.
"""
