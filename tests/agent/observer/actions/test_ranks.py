"""The live ranks of a run as an action sees them: by their records, and by what the relay brings of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

import msgspec
import pytest
from support.fakes.observers import observed

from ddptop.agent import wire
from ddptop.agent.observer.actions.ranks import LiveRanks
from ddptop.agent.observer.service.requests import Replies
from ddptop.agent.run import hosts
from ddptop.agent.run.hosts import FarRanks
from ddptop.agent.run.rundir import Run
from ddptop.agent.wire import HostFrame
from ddptop.agent.wire.refusals import Refused, Unheard


def run_of(name: str, world: int) -> Run:
    """Return the record of a run that was launched."""
    return Run(name, name, "toy.py", (), world, "gloo", "cpu", time.time_ns(), True, state="running")


def test_replies_count_that_come_in_time_and_are_a_ranks_own() -> None:
    """A rank in whose place the relay answers, and one that says nothing, are left out; each has a deadline."""
    asked: dict[int, wire.Command] = {}

    def relay(command: wire.Command, ranks: Collection[int], replies: Replies) -> None:
        asked.update(dict.fromkeys(ranks, command))
        replies.put((2, wire.Reply(0, False, "rank 2 does not answer", refusal=Unheard.kind)))
        replies.put((1, wire.Reply(0, True, step=4)))
        replies.put((0, wire.Reply(0, False, "the training runs")))

    with observed(run_of("calls", 4)) as observer:
        ranks = LiveRanks(observer.directory, relay)
        assert ranks.ranks == [0, 1, 2, 3]
        found = ranks.send(wire.Hold(0, "t"), range(4), 0.2)
    assert [(rank, reply.done) for rank, reply in found.items()] == [(0, False), (1, True)]
    assert sorted(asked) == [0, 1, 2, 3]
    assert all(isinstance(each, wire.Hold) and each.until_ns is not None for each in asked.values())


def nothing(*_: object) -> None:
    """Ask nobody."""


def test_the_record_of_a_rank_on_a_linked_host_is_waited_for() -> None:
    """The ranks of a host are shown before all is written of them; of a host that is not linked nothing is awaited."""
    with observed(msgspec.structs.replace(run_of("linking", 2), local_world=1)) as observer:
        folder = observer.directory.path
        there = observer.directory.members()[1]
        (folder / "ranks" / "1.json").unlink()
        for state in ("silent", "gone", "alone"):
            hosts.write_hosts(folder, (HostFrame("node2", state, (1,)),))
            with pytest.raises(Refused, match="rank 1: on another host, of which nothing is heard here"):
                LiveRanks(observer.directory, nothing)
        hosts.write_hosts(folder, (HostFrame("node2", "linked", (1,)),))
        with pytest.raises(Refused, match="still starting: rank 1 has not reported yet; try again in a moment"):
            LiveRanks(observer.directory, nothing)
        writing = threading.Timer(0.3, hosts.write_far, (folder, FarRanks((there,))))
        writing.start()
        assert LiveRanks(observer.directory, nothing).ranks == [0, 1]
        writing.join()
