"""The agent inside one rank's process: it observes the training step and does not disturb it.

opening     its start
session     the agent of one rank: its parts, its state and its end
publisher   its thread: sockets, telemetry, commands
scarcity    descriptors and threads, tried before there are sockets
hooks       patches of torch that stamp the phases of a step
collectives the timing of collectives
inspection  where the rank stands: stacks and open collectives, for who asks
records     from stamps to `Step` records and summaries
commands    hold, step, checkpoint, answers
process     enrolment, output, ending
calls       our public calls: their arguments, and what the script tells by them
faults      the wall between the agent and the training
"""
