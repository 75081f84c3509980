"""The patches of torch that observe a training step.

patches     stamps for data, forward, backward and its loss, optimizer
boundary    the end of a step
batches     tells batches of the training from those of evaluations
losses      copies a loss to the host without stalling its device
gradients   a sample of the gradients, which shows whether they are finite
compilers   hides our code from torch's compiler
imports     runs a function after the script's own import of a module
injection   the faults of `--inject`
"""
