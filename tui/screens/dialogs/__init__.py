"""Screens over a screen.

dialog      a dialog over a darkened screen; `transient` is what comes and goes
kill        the question before a kill, and the account of it
launch      the form of a launch; `field` is a line of it, `program` the one that names the program
question    what is asked before a stop, a freeze and a restart, and in which words
pickers     lists of which one entry is chosen; `picker` is their base
"""
