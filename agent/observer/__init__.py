"""Code that runs beside the ranks, outside their processes: one process for each run.

observer    the process, its start, its log and its exit
one_run     the main thread of the observer: it starts a launched group, and looks after the run until its end
jobs        what the run is part of: a job that something else launched, a scheduler
actions     what is asked of the observer: what all ranks do together, profiles, endings and signals
model       what the run and its ranks are like: messages in, frames out
relay       the messages of the ranks: received once, recorded, judged and shown
service     the topics and answers of an observer, for onlookers and the observers of other hosts
inspection  the places at which ranks stand, by their agents or from outside
sampling    looks from outside at the ranks of a job that nobody prepared
hosts       the other hosts of a run, and the link between their observers
judge       verdicts: the rank that holds the group back, and other faults
end         the ending of a run, and the ends of its ranks
"""
