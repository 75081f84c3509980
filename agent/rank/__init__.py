"""The agent inside one rank's process: it observes the training step and does not disturb it.

opening      the start of the agent
session      the agent of one rank: its parts, its state and its end
publisher    the agent's thread: sockets, telemetry, commands
hooks        patches of torch that stamp the phases of a step
collectives  the timing of collectives
checksums    checksums of the parameters, for a comparison of the ranks
inspection   the place at which the rank stands: stacks and open collectives
records      from stamps to `Step` records and summaries
commands     hold, step, checkpoint, answers
process      enrolment, output, ending
calls        our public calls: their arguments, and what the script reports by them
ahead        a question over steps ahead, and why it has no answer
faults       the border between the agent and the training
"""
