"""The ranks of a run, each and together.

rank        what is known of one rank, and whether it is stalled; `group` adds the ranks up
recent      what the newest steps of a rank were like
generations which start of the group they are of
mesh        where they stand on a device mesh
"""
