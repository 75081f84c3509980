"""Training in which ranks do not go in step.

paramserver  the program
loop         its training loop: some ranks serve the parameters, the others train on them
"""
