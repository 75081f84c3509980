"""The public calls that a script makes, and what it tells by them.

script      what the script has told: total steps, note, metrics
given       the arguments of the calls, whatever they are
"""
