"""Code that runs beside the ranks, outside their processes: one process for each run.

own_log   the log of the observer itself
observer  the process
one_run   its main thread: it starts the group where ddptop launched it, and looks after the run until its end
engine    who starts the ranks, and on which machine
orders    commands to the observer
model     what the run and its ranks are like: messages in, frames out
relay     what the ranks tell: received once, repeated, recorded and judged
inspection where ranks stand, by their agents or from outside
hosts     the link between the observers of a run on several hosts
judge     who holds the group back, and what else is wrong
record    the recording of the run
history   the numbers of the run over steps and time
end       ends a run, and finds the cause of its end
status    the present state of a run, and the start of another observer where it has none
"""
