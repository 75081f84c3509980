"""What a run is part of, seen from its observer.

attached    a job that something else launched
unprepared  the ranks of a job that nobody prepared
resizing    a job that an elastic launcher starts with another number of ranks
scheduler   a scheduler that has given this machine to a run
unseen      processes of a program in which no agent starts
"""
