"""What the dashboard knows of a run: messages in, frames out.

store       takes messages, and moves on with time
situation   what the run is like at a moment, by what the store knows
hearing     whether the observer of the run is heard
changes     what has changed from one moment to the next, as events
diagnosis   why a run stands or has ended: hang, stacks, report
frame       what one painting of the screen needs; `framer` makes it of a store, and changes nothing
ranks       what is known of the ranks, each and together
collectives waiting and transfer
metrics     the numbers that can be drawn
history     the numbers of a run, by step and by time
logs        what the output of the ranks says
"""
