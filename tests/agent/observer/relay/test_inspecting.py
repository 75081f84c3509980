"""Onlookers ask a relay where ranks stand: of one that does not answer they learn what the system tells."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import pytest
import zmq
from support.fakes.ranks import ranks
from support.fakes.relay import relayed
from support.harness import DEADLINE_S
from support.values.messages import read_reply

from ddptop.agent import wire
from ddptop.agent.observer.inspection import dumps
from ddptop.agent.run.rundir import RunDir


def test_who_answers_is_heard_and_who_does_not_is_looked_at(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 tells where it stands; rank 1, of an older version, cannot read the question; there is no rank 2."""
    monkeypatch.setattr(dumps, "executable", lambda: None)
    directory = new_run(world=3)
    with ranks(directory, 2) as group, relayed(directory), zmq.Context() as context:
        for rank in group:
            rank.meet()
            rank.fill()
        with context.socket(zmq.DEALER) as onlooker:
            onlooker.linger = 0
            onlooker.connect(directory.address("observer", "cmd"))
            for number in range(3):
                onlooker.send_multipart([b"%d" % number, wire.encode(wire.Inspect(70 + number))])
            told = wire.Inspection(0, 1, "agent", 5, groups=(wire.GroupCalls("0", 7),))
            group[0].inspect(told)
            found: dict[int, wire.Reply] = {}
            while len(found) < 3:
                assert onlooker.poll(int(1000 * DEADLINE_S)), f"only {found}"
                name, payload = onlooker.recv_multipart()
                found[int(name)] = read_reply(payload)
    assert [found[rank].id for rank in range(3)] == [70, 71, 72]
    assert found[0].inspection is not None
    # The test itself is the rank, and its work is measured whoever answers.
    assert found[0].inspection.work is not None
    assert msgspec.structs.replace(found[0].inspection, work=None) == told
    seen = found[1].inspection
    assert seen is not None
    assert (found[1].done, seen.rank, seen.by, seen.pid, seen.problem) == (
        True,
        1,
        "system",
        os.getpid(),
        dumps.MISSING,
    )
    assert seen.status in ("running", "sleeping")
    assert (found[2].done, found[2].inspection) == (False, None)
