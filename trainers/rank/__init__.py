"""The start of a rank from its command line.

options     the options that programs share, checked before torch is needed
start       starts the ranks of a program, or joins those that torchrun has started
group       rank, device and process group
refusal     a reason not to train, in one line
slowness    a rank that is slowed down on purpose
"""
