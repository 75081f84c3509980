"""What may be wrong with a run, a module for each.

slow              who holds the group back; `suspects` says what each suspect costs
turns             ranks that take turns being late
rhythm            how often a delay comes that does not come in every step
memory_growth     memory that does not settle
no_communication  ranks that never communicate
health            losses and gradients that are not finite
"""
