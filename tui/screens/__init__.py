"""The screens: each one shows a `Frame`; the keys that act on the run name actions of the app.

run         all ranks of a run: the main screen; and the list of runs, where it has no room beside one
rank        one rank
lists       one long list: the logs of ranks, the events of a run, and the base of stacks and report
stacks      the places at which the ranks stand
report      the reason why the run has failed
diagnosis   the newest diagnosis of a kind, such as a profile
comparison  two runs beside each other
plot        the plot alone, and the base of screens with a plot
help        keys, signs and letters
live        the base of all screens of a run
dialogs     screens over a screen
"""
