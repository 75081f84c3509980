"""How our processes start, before anything else is imported.

starter     runs a module as a program of its own
detacher    the same, as no child of the process that asked for it
importpath  keeps the current directory off the import path
pythonpath  the folder whose `sitecustomize` starts the agent in ranks that a program spawns itself
"""
