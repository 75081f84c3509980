"""Where ranks stand, for the observer and for onlookers: by their agents, or else from outside.

inspections  asks the agents, and has those looked at that do not answer
outside      looks at processes from outside: status, CPU, memory, stacks
work         bytes and CPU time of a rank and its children, by which work is seen that no stack shows
rivals       who takes the cores of a rank that waits for one
dumps        stacks by py-spy, of several processes at a time
"""
