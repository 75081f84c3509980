"""From a command line to a rank at work.

options     what programs share, checked before anything heavy starts
start       whoever starts the ranks: torchrun or the program itself
group       rank, device, process group: joined and left in one place
refusal     a reason not to train, in one line
slowness    a rank made slow on purpose
"""
