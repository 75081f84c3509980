"""The process of a rank: which run it belongs to, where it prints, how it ends.

enrolment   finds or makes the run
ancestry    whether this process is the rank, or was started by it
spawned     ranks that the program has spawned itself
output      the log, as long as there is room
account     what the rank writes of itself into the run directory
ending      exit status and exception as text
"""
