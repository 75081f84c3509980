"""The work of the model in a step, counted once, and the peak of the device that does it.

counting    the trace of one early step, between two boundaries
arithmetic  the floating-point operations in a trace
peaks       such operations a second that a device can do
"""
