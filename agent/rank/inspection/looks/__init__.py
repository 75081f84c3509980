"""The time that the training spends in each line, by many glances at its stacks, once a verdict accuses a rank.

looking  the training thread
modules  the module whose backward pass torch executes meanwhile
workers  the data workers
tally    stacks and their times, summed up by lines
"""
