"""Inside one rank's process: sees the training step, never disturbs it.

session     the agent of one rank: its parts, its beginning and end
publisher   its thread: sockets, telemetry, commands
hooks       what of torch is watched
collectives their timing
records     from stamps to `Step` records and summaries
commands    hold, step, checkpoint, answers
process     enrolment, output, ending
given       what a script gives to our calls
faults      the wall between the agent and the training
"""
