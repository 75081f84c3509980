"""A run as the dashboard shows it: frames, words, numbers over time, and logs.

diagnosis   why a run stands or has ended: hang, stacks, report
frame       the contents of one painting of the screen
metrics     the numbers that can be drawn
history     the numbers of a run, by step and by time
logs        the output of the ranks, line by line
"""
