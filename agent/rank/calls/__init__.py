"""The public calls that a script makes, and what it reports by them.

script  the reports of the script: total steps, note, metrics
saving  the function that saves a checkpoint
given   the arguments of the calls, whatever they are
"""
