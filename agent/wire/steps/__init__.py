"""The numbers of steps, alike in the rank, in its observer and for onlookers.

numbers    the numbers of a step, their means, and the names of those of a history
latencies  the latency of collectives from `Step` records
"""
