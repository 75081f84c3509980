"""Timing of collectives.

timing         by the hooks of torch's process groups; the latency made of it is in `agent.wire.latencies`
wrapper        where torch has no such hooks
backends       the number of workers of a backend, and the clock of its collectives
waits          the time for which the training thread waits
counted        the calls of each group so far
open_calls     the calls that have not completed
recorder       torch's own record of collectives, where ours does not tell
communication  whether a rank may communicate unseen
"""
