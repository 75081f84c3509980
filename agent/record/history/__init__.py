"""The history of a run: the numbers of every rank, over the steps and over time, in tables of the run's file.

rows      what ranks tell, until it is written
series    numbers in buckets, which are folded into wider ones
packing   buckets as bytes
stored    the tables: pieces that are written, folded, and read by range
answers   the answer to a question about the history, of a run that goes on or from the file of one that has ended
columns   columns of a plot, and their form on the wire
"""
