"""What is believed of what ranks say of themselves."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec
import pytest

from ddptop.agent.run import generations, rundir
from ddptop.agent.run.rundir import Member, Process, Run, identify

RUN = Run("r", "id", "x.py", (), 3, None, None, 1, True, max_restarts=3)
HUGE = 2**31 - 1


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ([], 0),
        ([(0, True), (0, True), (HUGE, True)], 0),
        ([(0, True), (HUGE, True)], 0),
        ([(0, True), (0, True), (1, True)], 0),
        ([(0, False), (0, False), (1, True)], 1),
        ([(5, False), (7, True)], 7),
        ([(0, False), (1, False), (1, False)], 1),
        ([(4, False), (4, False), (HUGE, False)], 4),
    ],
)
def test_the_present_generation(claims: list[tuple[int, bool]], expected: int) -> None:
    """Who lives decides, by number; where nobody does, the newest that was not skipped to."""
    assert generations.present(claims) == expected
    assert generations.present(claims[::-1]) == expected


def test_the_last_start_of_a_run_that_failed_at_once_is_its_present(runtime: Path) -> None:
    """Rank 2 was ended before it had written its record in either of two starts: nobody lives, and 2 is allowed."""
    directory = rundir.create(msgspec.structs.replace(RUN, run="failed-at-once"))
    for rank, generation in ((0, 2), (1, 2), (2, 0)):
        directory.write_member(Member(rank, rank, 3, Process(1, 1.0), "h", generation, "", "", None))
    assert list(directory.members()) == [0, 1]
    assert generations.present([(2, False), (0, True), (0, True)], bounded=True) == 0


@pytest.mark.parametrize(
    ("later_s", "boot", "expected"), [(7.0, "b", [2, 3]), (0.2, "b", [0, 1]), (7.0, "another", [0, 1])]
)
def test_what_began_last_is_present_where_a_start_left_no_record(
    later_s: float, boot: str, expected: list[int], runtime: Path
) -> None:
    """A host of an elastic job had ranks 0 and 1 in one start, and 2 and 3 in those before and after: nobody lives.

    A number that a process of the same start claims, or one of another start of the machine, passes no gap.
    """
    run = msgspec.structs.replace(RUN, run=f"turned-{later_s:.0f}-{boot}", world=4, launched=False)
    directory = rundir.create(run)
    for rank, generation in ((0, 1), (1, 1), (2, 3), (3, 3)):
        process = Process(1 << 30, 100.0 + rank / 100 + (later_s if generation == 3 else 0), "b" if rank < 2 else boot)
        directory.write_member(Member(rank, rank % 2, 4, process, "h", generation, "", "", None))
    assert list(directory.members()) == expected


LIVES, GONE = Process(1, 1.0), Process(2, 2.0)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([], 0),
        ([(0, 0, 0, GONE), (1, 1, 0, GONE)], 1),
        ([(0, 0, 1, LIVES), (1, 1, 0, GONE)], 1),
        ([(0, 0, 2, LIVES), (1, 1, 0, GONE)], 2),
        ([(0, 0, 4, GONE), (1, 1, 2, GONE)], 3),
        ([(3, 1, 2, GONE)], 3),
        ([(0, 0, 1, LIVES), (2, 2, 1, LIVES), (3, 3, HUGE, LIVES), (1, 1, 0, GONE)], 1),
    ],
    ids=[
        "first",
        "second",
        "a sibling is ahead",
        "it left no record",
        "own start",
        "another rank before",
        "a false record",
    ],
)
def test_starts_that_torchrun_does_not_count_are_counted(
    known: list[tuple[int, int, int, Process]], expected: int
) -> None:
    """Of rank 1, local rank 1: one more than its last start, or that of those which live already."""
    members = [Member(rank, local, 4, process, "h", at, "", "", None) for rank, local, at, process in known]
    assert generations.of_start(0, 1, 1, members, LIVES.__eq__) == expected
    assert generations.of_start(7, 1, 1, members, LIVES.__eq__) == 7


def test_a_run_on_several_hosts_may_start_more_often_than_torchrun_counts() -> None:
    assert generations.most(RUN, 0) == 3
    assert generations.most(msgspec.structs.replace(RUN, nodes=2, local_world=1), 3) == 4


def test_a_false_record_takes_no_other_rank_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank of a generation that the run cannot have, or that alone is of it, is left out; the others are listed."""
    living = identify(os.getpid()) or Process(1, 0.0)
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as base:
        monkeypatch.setenv(rundir.BASE_VARIABLE, base)
        for launched, claim in ((True, HUGE), (True, 3), (False, HUGE)):
            run = f"r-{launched}-{claim}"
            directory = rundir.create(msgspec.structs.replace(RUN, run=run, launched=launched))
            for rank, generation in ((0, 1), (1, 1), (2, claim)):
                directory.write_member(Member(rank, rank, 3, living, "h", generation, "", "", None))
            assert list(directory.members()) == [0, 1]
        directory.write_member(Member(2, 2, 3, living, "h", 1, "", "", None))
        assert list(directory.members()) == [0, 1, 2]
