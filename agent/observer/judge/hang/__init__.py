"""A run that makes no steps: whether it hangs, its cause, and what the ranks wait for. Pure, without a clock.

watch     a suspicion, the questions to the ranks that follow from it, and the verdict in the end
progress  the steps of the run by its heartbeats: the seconds since the last one, and the usual seconds
looks     inspections of the ranks at several moments, and the changes from one to the next
place     the work or the wait of a rank's main thread, by its stack
activity  ranks that work although their stacks stand still
waits     the ranks for which each rank waits, and different calls at the same number, by the records of collectives
classes   reasons for which a rank does not come
verdict   the verdict from all of the above
wording   the lines for people

Nothing here needs NumPy.
"""
