"""A number over steps.

plot        the widget; `placeholder` stands for it until it is loaded
contents    which lines it shows
window      which steps it shows
curves      series to columns, and the ticks and labels of values
ticks       the ticks and labels of steps
"""
