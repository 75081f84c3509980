"""Commands to many ranks through the observer, by one socket."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest
from support.fakes.observers import connections, observed
from support.harness import until

from ddptop.agent import wire
from ddptop.agent.control.caller import LiveGroup, Relayed, silence
from ddptop.agent.control.controller import Refused
from ddptop.agent.run import hosts
from ddptop.agent.run.hosts import FarRanks
from ddptop.agent.run.rundir import Run
from ddptop.agent.wire import HostState


def run_of(name: str, world: int) -> Run:
    """Return the record of a run that was launched."""
    return Run(name, name, "toy.py", (), world, "gloo", "cpu", time.time_ns(), True, state="running")


def test_each_rank_gets_its_command_and_its_reply_counts() -> None:
    """Whatever the order of the answers; those of others, of other commands and what is none are left out."""
    with observed(run_of("calls", 4)) as observer:
        found: dict[int, wire.Reply] = {}

        def ask() -> None:
            with Relayed(observer.directory) as calls:
                found.update(calls.ask({rank: wire.Query(10 + rank) for rank in range(4)}, 30.0))

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: observer.turn() and len(observer.asked) == 4, "four commands")
        assert connections(observer.directory.address("observer", "cmd")) == 1
        commands = {int(rank): wire.read_command(payload) for _, (rank, payload) in observer.asked}
        assert {rank: command.id for rank, command in commands.items()} == {rank: 10 + rank for rank in range(4)}
        sender = observer.asked[0][0]
        observer.cmd.send_multipart([sender, b"0", b"\xff"])
        observer.cmd.send_multipart([sender, wire.encode(wire.Reply(10, True, "without a number"))])
        observer.answer(sender, 9, wire.Reply(10, True, "nobody asked it"))
        observer.answer(sender, 0, wire.Reply(9, True, "another command"))
        for rank in (3, 1):
            observer.answer(sender, rank, wire.Reply(10 + rank, True, step=rank))
        observer.answer(sender, 2, wire.Reply(12, False, silence(2)))
        observer.answer(sender, 0, wire.Reply(10, False, "the training runs"))
        asking.join()
        assert {rank: (reply.done, reply.step) for rank, reply in found.items()} == {
            3: (True, 3), 1: (True, 1), 0: (False, None),
        }  # fmt: skip


def test_what_comes_too_late_is_not_waited_for() -> None:
    """An observer that says nothing costs the timeout; a command tells by when it is to be done."""
    with observed(run_of("late", 2)) as observer, LiveGroup(observer.directory) as group:
        assert group.ranks == [0, 1]
        assert group.ask({0: wire.Hold(1, "token"), 1: wire.Hold(2, "token")}, 0.2) == {}
        until(lambda: observer.turn() and len(observer.asked) == 2, "both commands")
        (command, *_) = (wire.read_command(payload) for _, (_, payload) in observer.asked)
        assert isinstance(command, wire.Hold)
        assert command.until_ns is not None


def test_the_record_of_a_rank_on_a_linked_host_is_waited_for() -> None:
    """The ranks of a host are shown before all is written of them; of a host that is not linked nothing is awaited."""
    with observed(msgspec.structs.replace(run_of("linking", 2), local_world=1)) as observer:
        folder = observer.directory.path
        there = observer.directory.members()[1]
        (folder / "ranks" / "1.json").unlink()
        for state in ("silent", "gone", "alone"):
            hosts.write_hosts(folder, (HostState("node2", state, (1,)),))
            with pytest.raises(Refused, match="rank 1: on another host, of which nothing is heard here"):
                LiveGroup(observer.directory)
        hosts.write_hosts(folder, (HostState("node2", "linked", (1,)),))
        with pytest.raises(Refused, match="still starting: rank 1 has not reported yet; try again in a moment"):
            LiveGroup(observer.directory)
        writing = threading.Timer(0.3, hosts.write_far, (folder, FarRanks((there,))))
        writing.start()
        with LiveGroup(observer.directory) as group:
            assert group.ranks == [0, 1]
        writing.join()
