"""What a rank answers to the question for a diagnosis.

profiles  the traces of profiled steps
memory    the census of the memory of a rank
probed    a probe and what it has found
probes    the experiments of a rank that is held
"""
