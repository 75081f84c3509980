"""The training loop and what it consists of.

loop        epochs, evaluation, checkpoints
task        what a program brings to the loop
technique   how the ranks become one training
data        data sets, real or synthetic; `synthetic` makes the latter
checkpoint  the newest whole, and the one before it
metrics     what is told to the dashboard and to TensorBoard
throughput  images a second
randomness  random numbers that depend on nothing that happened before
"""
