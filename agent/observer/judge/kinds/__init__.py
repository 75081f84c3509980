"""The faults that a run may have, a module for each.

finder            what the judge asks of each of them
slow              who is blamed for holding the group back, in each step or in some, and since when
by_looks          the same by looks from outside, where no agent is in the ranks
suspects          the limits from which a rank or a phase is blamed, and the cost of each in ms
hosts             a host all of whose ranks hold the group back, and a slow network to a host
turns             ranks that take turns being late
memory_growth     memory that does not settle
no_core           a rank that has no core to run on
no_communication  ranks that never communicate
health            losses and gradients that are not finite
divergence        ranks whose parameters differ from those of the others
"""
