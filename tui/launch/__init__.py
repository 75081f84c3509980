"""The launch of a run.

options     the options of a launch, each described once
target      the program of a request, found without running it
launch      a launch by the catalogue of programs
form        the fields of the form, their faults, and the command line that says the same
programs    the options of the catalogue's programs, and the programs that a half typed word may mean
remembered  the fields of the last form, and the launches before
"""
