"""What of torch is watched, and patched for it.

patches     data, forward, backward and its loss, optimizer: when each begins and ends
boundary    where a step ends
batches     which batches were trained on
losses      brings a loss to the host without stalling its device
gradients   whether they are finite
compilers   keeps torch's compiler off our code
imports     runs a function after the script's own import of a module
injection   faults that `--inject` asks for
"""
