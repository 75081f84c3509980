"""Runs on other machines. What runs there is drawn there: `ssh` or `srun` starts the ddptop there, on this terminal.

target  `HOST:RUN`, as a person writes it, and why it cannot be reached
errand  a verb that is carried out on another machine: its line there, its process here, and its beginning there
ssh     by OpenSSH: its options, and what its errors mean
slurm   by an overlapping step of `srun` on the node of a job

Nothing of ddptop listens on a network for it, and nothing of a run comes here but what a verb writes.
"""
