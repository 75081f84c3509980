"""The history of a run: the numbers of every rank, over the steps and over time, in tables of the run's file.

question  what can be asked, and the answer that has nothing
rows      what ranks tell, until it is written
series    numbers in buckets, which are folded into wider ones
packing   buckets as bytes
stored    the tables: pieces that are written, folded, and read by range
whole     the newest steps as they were recorded, found by their numbers
aligned   steps of several ranks on one clock, their collectives split into waiting and transfer
answers   the answer to a question about the history, of a run that goes on or from the file of one that has ended
columns   columns of a plot, and their form on the wire
"""
