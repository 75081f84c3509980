"""Runs that are kept out of the reach of the ring, and carried to other machines: each packed into one file.

packed  a run as the bytes of a file, and as a folder again that all of the client reads
kept    the files of a user: kept runs, baselines, and what a name or a path means
"""
