"""Who takes the core of a rank that waits for one: real processes, pinned to a core, and the system's own word."""

from __future__ import annotations

import os

from ddptop.agent import wire
from ddptop.agent.observer.inspection.rivals import Rivals
from ddptop.agent.run import cores
from ddptop.agent.run.identity import identify
from ddptop.agent.run.rundir import Member

VERDICT = wire.Verdict(1, "no_core", "rank 1 waits for a core", 0, rank=1)


def test_as_long_as_no_rank_of_this_host_waits_for_a_core_nothing_is_read(monkeypatch):
    """Neither without a verdict, nor with one of a rank of another host, nor with another kind."""
    monkeypatch.setattr(cores, "threads", lambda: 1 / 0)
    looks = Rivals()
    me = identify(os.getpid())
    assert me is not None
    looks.meet(Member(1, 1, 2, me, "host", 0, "", "", None))
    looks.turn([])
    looks.turn([wire.Verdict(1, "no_core", "rank 2 waits for a core", 0, rank=2)])
    looks.turn([wire.Verdict(1, "slow_rank", "rank 1 holds the group back", 0, rank=1)])


def test_the_threads_of_the_machine_are_read_seldom_while_a_rank_waits_for_a_core(monkeypatch):
    """Twice when the verdict comes, twice a minute after that, and at once for another rank."""
    now, read = [0.0], list[float]()

    def threads() -> dict[tuple[int, int], cores.Used]:
        read.append(now[0])
        return {(1, 1): cores.Used(0.0, 0)}

    monkeypatch.setattr(cores, "threads", threads)
    looks = Rivals(lambda: now[0])
    me = identify(os.getpid())
    assert me is not None
    for rank in (1, 2):
        looks.meet(Member(rank, rank, 3, me, "host", 0, "", "", None))
    another = wire.Verdict(2, "no_core", "rank 2 waits for a core", 0, rank=2)
    for second in range(100):
        now[0] = float(second)
        looks.turn([VERDICT] if second < 90 else [VERDICT, another])
    assert read == [0, 5, 65, 70, 90, 95]
