"""Cells, colors and numbers: every view draws with these.

lines       rows of cells, and the page that shows them
bars        bars and sparklines
units       numbers as text
ticks       even steps and labels of an axis, which plot, timeline and heatmap share
theme       every color, by what it means
glyphs      ASCII in place of other signs
filters     puts ASCII in place of other signs, last of all
keynames    the names of keys in texts
"""
