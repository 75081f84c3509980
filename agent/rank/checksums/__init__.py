"""Checksums of the rank's parameters at the end of a step, for the observer to compare.

checks   the steps at which checksums are due, and the messages made of them
modules  the parameters to compare, by the DDP modules and optimizers of the script
sums     the checksum of a tensor

Parameters are only read: no random number is drawn, nothing is written, and no collective is called.  torch comes as an
argument; without it nothing here is reached.
"""
