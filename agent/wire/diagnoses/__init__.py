"""What a rank answers to the question for a diagnosis, and what is kept of the answers.

profiles  the traces of profiled steps
memory    the census of the memory of a rank
probed    a probe and what it has found
probes    the experiments of a rank that is held
kept      the diagnoses that are kept with a run
"""
