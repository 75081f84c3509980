"""Ranks that make steps without a collective in which others wait are told; those that may do so are not."""

from __future__ import annotations

import pytest
from support.processes.standing import BARRIER, REDUCE, Run, Spot, Where, called, waits


def apart(run: Run, *, every_s: float = 0.2, call: Spot | None = None, calls_each: int = 0) -> Where:
    """Return what happens: rank 0 stands in the next call, rank 1 makes steps, with so many calls each."""
    waiter = call or waits(run.calls + 1, recent=(REDUCE,) * 4)

    def where(rank: int, at: float) -> Spot:
        done = int(at / every_s)
        return waiter if rank == 0 else Spot(ahead=done, calls=run.calls + done * calls_each, recent=(REDUCE,) * 4)

    return where


def trained() -> Run:
    run = Run(2, 0.2)
    run.train(6)
    return run


def test_a_rank_that_goes_on_without_a_collective_is_named():
    """With the call in which the other one waits, the time since its last step, and no line: it moves."""
    run = trained()
    where = apart(run)
    finding = run.until_told(9, where)
    hang = finding.hang
    assert hang is not None
    assert (finding.kind, finding.rank, hang.kind, hang.ranks, hang.where) == ("hang", 1, "not_entered", (1,), "")
    assert finding.text.startswith("rank 1 makes its steps without all_reduce 4 MiB, in which rank 0 waits · ")
    assert 5 <= int(finding.text.split(" ")[-2]) <= 8
    assert hang.timeout_at_ns is not None
    assert [each.rank for each in run.watch.inspections] == [0, 1]
    run.spend(20, where)
    assert len(run.hangs) == 1


def test_it_is_over_once_the_other_one_makes_steps_again():
    """And the run is not asked any more."""
    run = trained()
    run.until_told(9, apart(run))
    run.step += 60
    run.train(4)
    assert run.watch.finding(run.now_ns) is None
    assert run.watch.ceased_at_ns is not None
    asked = len(run.asked)
    run.train(10)
    assert len(run.asked) == asked


def test_once_all_stand_it_is_a_hang_like_any_other():
    """The rank ahead stands, too, at last: its line is told."""
    run = trained()
    where = apart(run)
    run.spend(9, where)
    run.spend(8, lambda rank, at: where(rank, 8.9) if rank else waits(run.calls + 1, seconds=9 + at))
    finding = run.watch.finding(run.now_ns)
    assert finding is not None
    assert finding.hang is not None
    assert (finding.hang.ranks, finding.hang.where) == ((1,), "train.py:31 main")


@pytest.mark.parametrize(
    "healthy",
    [
        lambda run: apart(run, call=waits(run.calls + 1, BARRIER, recent=(REDUCE, BARRIER))),
        lambda run: apart(run, call=waits(run.calls + 1, recent=(BARRIER, REDUCE))),
        lambda run: apart(run, call=waits(5, recent=(REDUCE,) * 4)),
        lambda run: apart(run, calls_each=1),
        lambda run: apart(run, every_s=2.0),
        lambda run: apart(run, call=waits(run.calls + 1, recent=(REDUCE,) * 4, observed=False)),
        lambda run: apart(run, call=waits(run.calls + 1, recent=(REDUCE,) * 4, ranks=(0, 7))),
        lambda run: apart(run, call=Spot(open=called(0), recent=(REDUCE,) * 4)),
    ],
    ids=[
        "a barrier", "a call that never came before", "fewer calls than steps", "calls of its own", "few steps",
        "not observed", "no member of the group", "no number",
    ],
)  # fmt: skip
def test_a_rank_that_may_go_on_is_not_accused(healthy):
    """One that trains alone while others wait at a barrier, averages now and then, or is only a few steps ahead."""
    run = trained()
    run.spend(30, healthy(run))
    assert run.hangs == []


def test_nobody_is_asked_of_ranks_that_are_held():
    """Of a run that pauses, some ranks are at the step already, and the others run up to it."""
    run = trained()
    where = apart(run)
    run.spend(30, lambda rank, at: where(rank, at) if rank else Spot(state="paused", calls=run.calls))
    assert run.asked == []
