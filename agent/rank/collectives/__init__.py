"""Timing of collectives.

timing         the timing by the hooks of torch's process groups; `agent.wire.latencies` makes latencies of it
wrapper        the timing where torch has no such hooks
backends       the number of workers of a backend, and the clock of its collectives
waits          the time for which the training thread waits
counted        the calls of each group since its start
open_calls     the calls that have not completed
recorder       torch's own record of collectives, for calls that our hooks do not see
communication  whether a rank may communicate unseen
"""
