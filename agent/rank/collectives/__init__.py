"""Timing of collectives.

timing         the timing by the hooks of torch's process groups, and the ways in which a rank may communicate unseen
wrapper        the timing where torch has no such hooks
backends       the backends of a group, with their workers and clocks, and its calls since its start
waits          the time for which the training thread waits
open_calls     the calls that have not completed
recorder       torch's own record of collectives, for calls that our hooks do not see
"""
