"""Dialogs in which an entry is chosen.

picker     the base of the others
columns    the columns of the table
metric     the metric of a plot
processes  a process of the run
script     a script in the folders of the machine
signals    a signal
"""
