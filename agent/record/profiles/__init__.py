"""Profiles: the traces that torch.profiler made in several ranks, as one trace, and in what two ranks differ.

The observer writes a folder for each profile into the run directory, `profiles/0001`, with what the ranks have sent;
`python -m ddptop.agent.record.profiles FOLDER`, a process of its own, makes `trace.json.gz` and `summary.json`
of it.

__main__   the process: a folder with the traces of ranks becomes one with one trace and a summary
merge      one trace of all ranks
summary    two ranks compared by operator, and the comparison in sentences
operators  the own time of each operator in the steps of a rank
trace      the trace of one rank, on the clock of the first host
parts      what the observer and the ranks have written
"""
