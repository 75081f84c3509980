"""What is kept of a run's past.

past        what the views look back on
by_step     every rank's numbers over the steps
by_time     every rank's numbers over time
series      one number in bounded memory
"""
