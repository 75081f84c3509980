"""What runs beside the ranks, outside their processes: start a group, look after it, record it, end it.

supervisor  one process for each launched run
launcher    torchrun, or the program that spawns its own ranks
orders      what the supervisor is told to do
broadcast   what it tells
machine     GPUs and cores
record      the memory of the run
end         how it is ended, and what it ended of
status      what is true of it now
"""
