"""What a rank answers to the question for a diagnosis.

profiles  the traces of profiled steps
memory    the census of the memory of a rank
probes    the experiments of a rank that is held
"""
