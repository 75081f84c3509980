"""Training in which ranks do not share a step.

paramserver  the program
servers      its technique: ranks that serve the parameters, and ranks that train on them
loop         its training loop
"""
