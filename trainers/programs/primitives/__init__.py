"""The primitives of distributed training, without a training loop.

sendrecv     point to point
toy          one all-reduce that can be checked in one's head
collectives  collectives by hand (`handmade`) beside the backend's own; measures time and bandwidth
"""
