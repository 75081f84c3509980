"""The records of all ranks, brought together for the judge.

blocks  steps of all ranks, added up to blocks
join    the records of one step, of all ranks
rounds  the summaries of a large group, one of each rank
detail  the records of a few ranks of a large group
hosts   the ranks of each host, and their steps brought together by host
median  the median of small arrays
"""
