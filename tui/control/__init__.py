"""What acts on runs; knows no screen.

actions    the actions that are offered in each state, and advice where one cannot be done
ending     the end of a run, a rank or a process, or a signal to it
kill       an ending that is under way: its target, the consent that it may begin, and the account of it
signals    the signals of this platform
checksums  the differences between the parameters of all ranks at one step, as lines and as JSON
actor      the user who acts, for the events of a run
launch     the checks and the start of a launch
"""
