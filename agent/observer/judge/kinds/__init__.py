"""What may be wrong with a run, a module for each.

slow              who holds the group back; `suspects` says what each suspect costs
slow_host         a host all of whose ranks do
link              whether the network to a host is slow, for the words of a verdict
turns             ranks that take turns being late
rhythm            how often a delay comes that does not come in every step
memory_growth     memory that does not settle
no_core           a rank that has no core to run on
no_communication  ranks that never communicate
health            losses and gradients that are not finite
"""
