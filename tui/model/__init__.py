"""What the dashboard shows of a run, and how it says that.

diagnosis   why a run stands or has ended: hang, stacks, report
frame       what one painting of the screen needs
metrics     the numbers that can be drawn
history     the numbers of a run, by step and by time
logs        what the output of the ranks says
"""
