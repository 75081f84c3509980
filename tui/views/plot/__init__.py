"""A number over steps.

plot        the widget; `placeholder` stands for it until it is loaded
canvas      where its lines are drawn in dots
contents    which lines it shows
window      which steps it shows
curves      series to columns
ticks       where the ticks of its axes lie; by the arithmetic of drawing.ticks
"""
