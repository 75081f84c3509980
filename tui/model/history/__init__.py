"""The history of a run, in bounded memory.

history     all that the views look back on
by_step     every rank's numbers over the steps
by_time     every rank's numbers over time
series      one number in bounded memory
"""
