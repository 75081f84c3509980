"""Why a run stands or has ended, in the words of the observer, and the diagnoses that are made on request.

hang     the verdict of a hang, for people
stacks   the stacks of the ranks, those at the same place together
report   the report on the end of a run, as lines
kept     the module that makes lines of a diagnosis
profile  a profile of some ranks, as lines and as JSON
probe    a probe, likewise
memory   the memory of some ranks, likewise
"""
