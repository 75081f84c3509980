"""The experiments of a probe, on the training thread of a rank that is held.

probing      one part of a probe, and what becomes of its errors
experiments  by a rank alone: a matrix product, files
messages     between ranks, by the script's own process group
facts        the circumstances: cores, control groups, temperature, the device
"""
