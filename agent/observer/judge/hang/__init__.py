"""A run that makes no steps: whether it hangs, who is the cause, and what the others wait for. Pure, without a clock.

watch     a suspicion, the questions to the ranks that follow from it, and what is told in the end
progress  the steps of the run by its heartbeats: how long it stands, and how long it usually does
looks     inspections of the ranks at several moments, and what has changed from one to the next
place     what a rank's main thread does, by its stack
activity  ranks that work although their stacks stand still
behind    ranks that stand while others make steps
waits     who waits for whom, by the records of collectives
mismatch  ranks that called different collectives at the same number
classes   why a rank does not come
verdict   all of that brought together
wording   the lines for people

Nothing here needs NumPy.
"""
