"""The launch of a run.

form        what is filled in, what is wrong with it, the command line that says the same
launch      from a request to a run with a supervisor
programs    the options of the catalogue's programs
modules     whether `python -m` would find a module
remembered  what was filled in last
"""
