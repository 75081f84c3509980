"""What is wrong with a run, judged once for all who look on. Pure: no sockets, no threads, no clock.

judgement  takes what the ranks tell, and returns verdicts
evidence   what the ranks tell of their steps, brought together
kinds      what may be wrong, a module for each
hang       a run that makes no steps: who is the cause, and what the others wait for
finding    what is found wrong at one moment
intervals  verdicts with a beginning, an end and a number, of what is found from moment to moment

NumPy is loaded here, which a rank must not be made to do.
"""
