"""The parts of a screen, each in a folder of its own.

panels      a box for each rank
table       a line for each rank
heatmap     all ranks over time
timeline    one step of all ranks
plot        a number over steps
rank        all about one rank
screen      header, events, log and key bar around these
stacks      where the ranks stand
ranks       what the views of ranks have in common
runs        the list of runs
"""
