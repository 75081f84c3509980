"""Training in which ranks do not go in step.

paramserver  the program
servers      its technique: who serves the parameters, and who trains on them
loop         its training loop
"""
