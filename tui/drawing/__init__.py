"""Cells, colors and numbers: every view draws with these.

lines     rows of cells, the widgets that show them, and the last step before the terminal: signs become `glyphs`
filtered  the base of lists with a filter after `/`
bars      bars and sparklines
units     numbers as text
ticks     even steps and labels of an axis, which plot, timeline and heatmap share
theme     every color, by its meaning
glyphs    ASCII in place of other signs
keynames  the names of keys in texts
"""
