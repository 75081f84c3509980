"""What is wrong with a run, judged once for all who look on. Pure: no sockets, no threads, no clock.

judgement   the whole judgement: records of ranks in, verdicts out
evidence    the records of all ranks, brought together by step
kinds       the kinds of faults, a module for each
hang        a run that makes no steps: the rank that causes it, and what the others wait for
comparison  the checksums of several ranks, compared tensor by tensor
finding     a fault at one moment
intervals   verdicts with a beginning, an end and a number, made of the findings of each moment

NumPy is loaded here, which a rank must not be made to do.
"""
