"""A folder for PYTHONPATH: what Python runs in it at the start of every process of a run.

For runs whose program spawns its own ranks, which no runner can wrap.
"""
