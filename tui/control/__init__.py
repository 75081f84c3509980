"""What acts on runs; knows no screen.

actions    the actions that are offered in each state, and advice where one cannot be done
signals    the signals of this platform
checksums  the differences between the parameters of all ranks at one step, as lines and as JSON
"""
