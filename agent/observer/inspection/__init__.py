"""The places at which ranks stand, for the observer and for onlookers: by their agents, or else from outside.

inspections  questions to the agents, and a look from outside at each rank that does not answer
outside      processes seen from outside: status, CPU, memory, stacks
work         bytes and CPU time of a rank and its children, a sign of work that no stack shows
rivals       processes that take the cores of a rank which waits for one
dumps        stacks by py-spy, of several processes at a time
"""
