"""Where a rank stands, for who asks: made on the agent's thread, while the training stands or goes on.

inspecting  the whole answer
stacks      the threads and what their frames say
dead_threads the last thread that ended by an exception
frames      their innermost frames, taken without harm
"""
