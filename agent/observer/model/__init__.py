"""The model of a run: messages of its ranks in, frames out. Pure, but for `run_model`: no sockets, files or clock.

run_model    the model with what the directory of its run says: records, recording, processes
framer       makes the frames of a store, and changes nothing
store        takes messages, and moves on with time
situation    the run at a moment, by what the store knows
changes      the changes from one moment to the next, as events
hosts        the hosts of a run on several, their order and their clocks
collectives  waiting and transfer of all-reduces
ranks        the ranks, each and together
turns        the ranks whose processes are looked up next, where there are too many to look up all
"""
