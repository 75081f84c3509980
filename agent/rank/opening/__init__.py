"""The start of the agent in the process of a rank: with its script, or later, in a job that nobody prepared.

start    the start of the agent
arrival  what Python 3.14 runs in the process of such a rank, once somebody asks the rank to join
joining  the step at which all ranks of the job join, and what there is of the training by then
"""
