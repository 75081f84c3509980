"""A box for each rank.

panels  the widget, which divides the room among the boxes
panel   the drawing of one box, and its least size
"""
