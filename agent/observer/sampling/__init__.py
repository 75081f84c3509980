"""Looks from outside at the ranks of a job that nobody prepared: messages as if they had published them.

sampling  the thread: looks of some seconds at all ranks, readings and logs once a second, and what comes of them
looks     stacks of processes over some seconds, by py-spy, and the CPU time of their main threads
phases    the phase of a stack, and the shares of phases by many stacks. Pure
logs      steps and losses in the lines of a log
"""
