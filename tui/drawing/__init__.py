"""What every view draws with.

lines       rows of cells, and the page that shows them
bars        bars and sparklines
units       numbers as text
ticks       where ticks are on an axis, and how they are written
theme       every color, by what it means
glyphs      what stands for a sign that is not ASCII
filters     the last step before the terminal
keynames    what keys are called
"""
