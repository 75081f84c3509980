"""A folder for PYTHONPATH: Python runs its `sitecustomize` at the start of every process of a run.

It serves runs whose program spawns its ranks itself, which cannot be started under the runner.
"""
