"""The user and the machine.

settings  the settings of this user
state     what is remembered for this user
program   our programs as processes
machine   this machine and its load
"""
