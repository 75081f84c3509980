"""How our processes start, before anything else is imported.

starter     a module, run as a program of its own
detacher    the same, as no child of the process that asked for it
importpath  the import path without the current directory
version     that of ddptop
pythonpath  the folder whose `sitecustomize` starts the agent in ranks that a program spawns itself
"""
