"""The patches of torch that observe a training step.

patches     stamps for data, forward, backward, optimizer
boundary    the end of a step
marks       steps without an optimizer of torch, and those that a script marks
groups      the start of torch.distributed, and each process group
around      hooks around functions of torch
copies      stamps for copies from the host to a device
batches     tells batches of the training from those of evaluations
losses      which losses can be read, and their values, without stalling the device
gradients   a sample of the gradients, which shows whether they are finite
compilers   hides our code from torch's compiler
imports     runs a function after the script's own import of a module
totals      how many steps the training takes, as the library says that runs its loop
injection   the faults of `--inject`
"""
