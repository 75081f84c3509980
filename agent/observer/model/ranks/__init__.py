"""The ranks of a run, each and together.

group        the numbers of all ranks, added up
rank         one rank: its identity, its records, its state
recent       the means of its newest steps
looks        the newest looks from outside at it, added up
generations  the start of the group that the ranks belong to
"""
