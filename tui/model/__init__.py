"""What the dashboard knows of a run: messages in, frames out.

store       takes messages, and moves on with time
changes     what has changed from one moment to the next, as events
frame       what one painting of the screen needs; `framer` makes it of a store, and changes nothing
rank        what is known of one rank; `group` adds the ranks up
collectives waiting and transfer
mesh        where ranks stand on a device mesh
metrics     the numbers that can be drawn
history     the numbers of a run, by step and by time
judge       who holds the group back
"""
