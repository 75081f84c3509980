"""A number over steps.

plot         the widget, and the ticks of its axes by the arithmetic of `drawing.ticks`
placeholder  a widget in its place until the plot is loaded
canvas       the area in which lines are drawn in dots
contents     the lines, limits and values of the plot
extent       the steps that the plot shows
curves       series to columns
"""
