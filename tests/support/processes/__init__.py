"""Runs of real processes, and what they are started from.

asking      command lines of ddptop, by forks of a process that is kept for them
warm        that process
kept        what is kept to fork what tests ask for, once a session
ranks       ranks of a training script without torchrun, by forks of a process that has imported torch
forked      that process
supervised  launched runs
observing   the process from which their observers are forked
standing    a run with a clock of its own, whose ranks stand as a test says
obedient    a launched run that does what it is asked to, and tells so
quiet       a run whose observer and launcher are a process that sleeps
scripts     training scripts of real runs
light       a training by hand that loads less than DDP does
unprepared  two ranks that nobody prepared
sshd        another machine: a real sshd on the loopback
"""
