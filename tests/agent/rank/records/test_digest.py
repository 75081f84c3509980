"""A summary says of a second of steps what their records say one by one."""

from __future__ import annotations

import statistics

import msgspec

from ddptop.agent import wire
from ddptop.agent.rank.records.digest import Digest

CALL = wire.Collective("all_reduce", 0, 1000, 8, 1)
STEP = wire.Step(1, 1, 100, 60, 10, 20, 15, 5, 8, 2, loss=1.5, samples=32, collectives=(CALL,), metrics={"lr": 0.1})


def test_a_summary_holds_the_means_and_the_newest():
    """Times are means over its steps; loss, step and what was logged are the last ones; then it begins anew."""
    digest = Digest(3)
    steps = [
        msgspec.structs.replace(STEP, seq=seq, step=seq, data_ns=10 * seq, wall_ns=50 + 10 * seq, loss=1 / seq)
        for seq in (4, 5, 6)
    ]
    for step in steps:
        digest.add(step)
    told = digest.close()
    assert told is not None
    assert (told.rank, told.number, told.steps, told.step, told.seq) == (3, 1, 3, 6, 6)
    assert told.data_ns == statistics.fmean(step.data_ns or 0 for step in steps)
    phases = (told.data_ns, told.forward_ns, told.backward_ns, told.optimizer_ns, told.wait_ns, told.other_ns)
    assert sum(phase or 0 for phase in phases) == 100
    assert (told.loss, told.samples, told.metrics, told.p50_ns) == (1 / 6, 32, {"lr": 0.1}, 1000)
    assert digest.close() is None
    digest.add(msgspec.structs.replace(STEP, seq=7, wait_ns=None, loss=None, metrics={}))
    told = digest.close()
    assert told is not None
    assert (told.number, told.wait_ns, told.loss, told.metrics) == (2, None, 1 / 6, {"lr": 0.1})
