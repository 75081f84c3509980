"""What is true of a run now, whoever asks.

survey      from records, ranks and the process table
membership  every process of the run in words and figures
takeover    starts another supervisor where the last one is gone
"""
