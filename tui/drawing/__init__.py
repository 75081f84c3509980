"""Cells, colors and numbers: every view draws with these.

lines     rows of cells, and the page that shows them
bars      bars and sparklines
units     numbers as text
ticks     even steps and labels of an axis, which plot, timeline and heatmap share
theme     every color, by its meaning
glyphs    ASCII in place of other signs
filters   the last step before the terminal, which replaces signs by `glyphs`
keynames  the names of keys in texts
"""
