"""Runs on other machines, over OpenSSH: nothing of ddptop listens for it; `ssh` here and ddptop there are all it needs.

unreachable  a run that cannot be reached, in one line
target       `HOST:RUN`, as a person writes it
ssh          one connection: its process, its forwarded sockets, and what its errors mean
messages     what the two ends of a connection say to each other
copying      parts of a run's database and logs, as they are sent
far          the far end: tells of one run, and acts on it
near         the near end: a private copy of the run's small files, and questions to the far end
link         the run as a `Source`: telemetry by the forwarded sockets, all else by the near end
verbs        verbs that are carried out on the other machine
slurm        a job's run, by an overlapping step of `srun`

The dashboard, `status` and `watch` run here: they read the copy and listen to the forwarded sockets of the run's
observer.  What needs the processes or the files of the run is done there, by the same code as there.
"""
