"""The first cause, as the observer tells it while the run ends, and as the record tells it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.fakes.events import SaidEvents

from ddptop.agent import wire
from ddptop.agent.end import survey
from ddptop.agent.observer.end.rank_ends import RankEnds
from ddptop.agent.observer.hosts.ends import OtherEnds
from ddptop.agent.observer.hosts.questions import OtherHosts
from ddptop.agent.record import recording
from ddptop.agent.run.rundir import Ended, Member, Process, RunDir

S = 1_000_000_000
TIMED_OUT = "RuntimeError: Timed out waiting 12000ms for recv operation to complete"
TEXT = "rank 1 hangs: it sleeps and never entered all_reduce 4 MiB, in which rank 0 waits · train.py:31 main"
HANG = wire.Verdict(1, "hang", f"{TEXT} · 12 s", 80 * S, None, 1, hang=wire.Hang("not_entered", (1,)))


def test_the_live_word_and_the_record_have_one_source(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was told of the hang is the cause at its end, by the observer and by whoever reads what it has left."""
    directory = new_run()
    ended = Ended(94 * S, 1, TIMED_OUT)
    directory.write_member(Member(0, 0, 2, Process(2**22 + 1, 1.0), "host", 0, "", "", None, ended))
    directory.write_member(Member(1, 1, 2, Process(2**22 + 2, 1.0), "host", 0, "", "", None))
    members = directory.members()
    exits: Any = SimpleNamespace(status={}, at_ns={0: 95 * S})
    orders: Any = SimpleNamespace(ranks_killed_by={}, killed_by=None)
    ends = RankEnds(directory, exits, orders, SaidEvents(), OtherEnds("node1", OtherHosts()))
    live = ends.first_cause(directory.read(), members, None, HANG)
    directory.database.touch(0o600)
    monkeypatch.setattr(recording, "read_verdicts", lambda database: [HANG])
    after = survey.first_cause(directory, directory.read(), members)
    assert (live.cause, live.rank, live.kind) == (TEXT, 1, "collective_timeout")
    assert (after.cause, after.rank, after.kind) == (live.cause, live.rank, live.kind)
