"""The screens: each one shows a `Frame`; the keys that act on the run name actions of the app.

run        all ranks of a run: the main screen
runs       the list of runs, where it has no room beside a run
rank       one rank
log        what a rank printed
events     what has happened; `with_roll` has what logs, events and stacks have in common
stacks     where each rank stands
plot       the plot alone
help       keys, signs and letters
live       what all of these have in common; `with_plot`, what those with a plot have
dialogs    screens over a screen
"""
