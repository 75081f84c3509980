"""What acts on runs; knows no screen.

actions    the actions that are offered in each state
ending     the end of a run, a rank or a process, or a signal to it
kill       an ending that is under way
consent    the target of an ending, and the check that the ending may still begin
signals    the signals of this platform
checksums  the differences between the parameters of all ranks at one step, as lines and as JSON
actor      the user who acts, for the events of a run
remedies   advice where an action cannot be done
launch     the checks and the start of a launch
"""
