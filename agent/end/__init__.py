"""The end of a run, and the processes that it leaves: what every process of ours may find out and do by itself.

survey      the present state of a run, by its records and the process table
processes   finding the processes of a run
escalation  ending them in stages, and a count of the survivors
freezer     stopping them where they are, and continuing them
cause       the end of a run and its first cause
kinds       the kinds of ends: how each is recognized, and what can be done about it
hung        the hang in which a run stands, or came to its end
mismatch    the first difference in the calls of a group
last_words  where the ranks stood when the run failed
traces      stacks in what a rank has left behind
report      all of that told
"""
