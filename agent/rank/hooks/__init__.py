"""The patches of torch that observe a training step.

patches    stamps for data, forward, backward, optimizer
boundary   the end of a step
marks      steps without an optimizer of torch, and those that a script marks
groups     the start of torch.distributed, and each process group
around     hooks around functions of torch
copies     stamps for copies from the host to a device
batches    the difference between batches of the training and those of evaluations
losses     losses that can be read without stalling the device, and their values
gradients  a sample of the gradients, which shows whether they are finite
compilers  our code, hidden from torch's compiler
imports    functions that run after the script's own import of a module
totals     the number of steps of the training, from the library that runs its loop
injection  the faults of `--inject`
"""
