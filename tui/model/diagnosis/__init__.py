"""Why a run stands or has ended, in the words of the observer.

memory   the memory of ranks, and what grew, as lines
hang     the verdict of a hang, for people
stacks   the stacks of the ranks, those at the same place together
report   the report on the end of a run, as lines
kinds    the diagnoses that are made on request
newest   the newest of a kind, as lines
profile  a profile of some ranks, as lines and as JSON
probe    a probe, likewise
"""
