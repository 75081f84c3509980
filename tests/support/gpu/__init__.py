"""What the tests on a CUDA device share; only `measuring` needs torch, inside the programs that are tested.

devices     whether there is a device, and which part of the tests runs without one
jobs        a program of `tests/gpu/programs` as a group of ranks, with or without the agent; what each rank measured
measuring   inside a program: the group, spans under the profiler, the agent's records
trace       the profiler's trace: spans of the host, work of the device, calls of the driver
"""
