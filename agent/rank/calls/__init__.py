"""The public calls that a script makes, and what it reports by them.

script  the reports of the script: total steps, note, metrics
given   the arguments of the calls, whatever they are
"""
