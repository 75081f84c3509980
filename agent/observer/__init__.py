"""Code that runs beside the ranks, outside their processes: it starts a group, supervises, records and ends it.

supervisor  one process for each launched run
launcher    torchrun, or the program that spawns its own ranks
orders      commands to the supervisor
broadcast   its state and events, published
machine     GPUs and cores
record      the recording of the run
end         ends a run, and finds the cause of its end
status      the present state of a run
"""
