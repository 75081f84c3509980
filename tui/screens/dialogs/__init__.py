"""Screens over a screen.

dialog     a dialog over a darkened screen
transient  the base of screens that come over another one and go again
kill       the question before a kill, and the account of it
launch     the form of a launch
field      a line of that form
program    the line of that form that names the program
question   the questions before a stop, a freeze and a restart, and their words
pickers    lists of which one entry is chosen
"""
