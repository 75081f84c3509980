"""The relays of several hosts, over real links: every door shows all ranks, and each rank is within reach of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from support.fakes.onlookers import Onlooker
from support.fakes.ranks import beat, steps
from support.fakes.relays import Host, several
from support.harness import until

from ddptop.agent import wire
from ddptop.agent.observer.record.recording import read_events, read_history
from ddptop.agent.run import hosts
from ddptop.agent.run.rundir import RunDir

Look = Callable[..., Onlooker]


@pytest.fixture
def look() -> Iterator[Look]:
    """Make onlookers, in a context of their own."""
    made: list[Onlooker] = []
    with zmq.Context() as context:

        def make(host: Host, *topics: bytes) -> Onlooker:
            made.append(Onlooker(context, host.directory, *topics))
            return made[-1]

        yield make
        for each in made:
            each.sub.close()
            each.cmd.close()


def _records(directory: RunDir, rank: int) -> list[int]:
    return [
        each.seq
        for message in read_history(directory.database)
        if isinstance(message, wire.Steps) and message.rank == rank
        for each in message.steps
    ]


def _events(host: Host) -> list[str]:
    return [each.text for each in read_events(host.directory.database) if isinstance(each, wire.Event)]


def test_both_doors_show_all_ranks(runtime: Path, look: Look) -> None:
    """What any rank publishes comes out of both doors, byte for byte, and the head records it."""
    with several(runtime, 2, 2) as (one, two), one.observed() as head, two.observed() as branch:
        two.find(one)
        until(lambda: branch.far.role == "branch", "the link")
        for rank in (*one.ranks, *two.ranks):
            rank.meet()
            rank.fill()
        lookers = [look(each, b"") for each in (one, two)]
        for looker in lookers:
            until(lambda looker=looker: b"hosts" in {topic for topic, _ in looker.listen()}, "a door")  # type: ignore[misc]
        expected = []
        for rank in (*one.ranks, *two.ranks):
            number = rank.rank
            for topic, message in (
                (wire.TOPIC_BEAT, beat(number, 3)),
                (wire.TOPIC_STEPS, steps(number, 0, 1)),
            ):
                expected.append((wire.topic_of(topic, number), rank.publish(topic, message)[0]))
        for looker in lookers:
            looker.await_all(*expected)
        until(lambda: all(_records(one.directory, rank) == [0, 1] for rank in range(4)), "the record of the head")
        assert head.far.role == "head"
        assert {each.host: each.ranks for each in hosts.read_hosts(one.directory.path)} == {
            "node1": (0, 1), "node2": (2, 3)
        }  # fmt: skip
        assert set(two.directory.everyone()) == set(one.directory.everyone()) == {0, 1, 2, 3}
        assert head.refused == branch.refused == 0
