"""The model of a run: what its ranks tell in, frames out. Pure: no sockets, no files, no clock of its own.

store       takes messages, and moves on with time
framer      makes the frames of it, and changes nothing
situation   the run at a moment, by what the store knows
changes     what has changed from one moment to the next, as events
ranks       the ranks, each and together
hosts       the hosts of a run on several, and their clocks
collectives waiting and transfer
hearing     whether the observer of the run is heard
thresholds  from where on something is said
"""
