"""The screens: each one shows a `Frame`; the keys that act on the run name actions of the app.

run        all ranks of a run: the main screen
runs       the list of runs, where it has no room beside a run
rank       one rank
log        the output of a rank
events     the events of a run
stacks     the places at which the ranks stand
report     the reason why the run has failed
plot       the plot alone
help       keys, signs and letters
live       the base of all screens of a run
with_plot  the base of screens with a plot
with_roll  the base of screens that are one long list: logs, events, stacks
dialogs    screens over a screen
"""
