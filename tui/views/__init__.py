"""The parts of a screen, each in a folder or a module of its own.

panels    a box for each rank
table     a line for each rank
heatmap   all ranks over time
timeline  one step of all ranks
plot      a number over steps
screen    header, events, log and key bar around these
stacks    the places at which the ranks stand
ranks     the base of the views of all ranks
runs      the list of runs
"""
