"""A line for each rank.

table     the widget
columns   the columns: title, width, order, drawing
grouping  the lines of ranks that are grouped by host, in the order of their first ranks
"""
