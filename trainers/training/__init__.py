"""The training loop and its parts.

loop        epochs, evaluation, checkpoints
task        model, data and optimizer of a program
technique   the way in which the ranks train one model together
data        data sets, real or synthetic
synthetic   pictures made without a download, in the shape of a real data set
checkpoint  the newest checkpoint, and the one before it
metrics     values for the dashboard and for TensorBoard
throughput  images a second
randomness  random numbers that follow from seed, epoch, step and rank
"""
