"""The parts of a screen around the views.

header   the lines above: the run, its progress, and a message
events   the events of the run, newest last
log      the log of one rank, beside other views
loglist  the logs on a screen of their own, scrolled and searched
keybar   the keys at the foot of the screen
"""
