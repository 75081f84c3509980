"""The places at which the ranks stand: their stacks, merged and folded.

places  the widget
lines   the lines of stacks as cells
"""
