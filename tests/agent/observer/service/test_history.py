"""The history that an observer records: as an onlooker gets it, as the next observer does, and after the end."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from support.fakes.onlookers import Onlooker
from support.fakes.ranks import Rank, ranks, step
from support.fakes.relay import relayed
from support.harness import until
from support.locking import held

from ddptop.agent import wire
from ddptop.agent.record import recording
from ddptop.agent.record.history.answers import from_file
from ddptop.agent.record.history.question import Question
from ddptop.agent.record.recording import last_recorded, read_steps
from ddptop.agent.run.rundir import RunDir


def records(*numbers: int) -> tuple[wire.Step, ...]:
    """Return records of these steps, each with its number as its loss."""
    return tuple(
        msgspec.structs.replace(step(number), step=number, end_at_ns=number * 10**9, loss=float(number))
        for number in numbers
    )


def ask(directory: RunDir, query: wire.History | wire.WholeSteps) -> list[wire.HistoryAnswer]:
    """Return the answer of the observer of a run."""
    with zmq.Context() as context:
        asking = Onlooker(context, directory)
        with asking.sub, asking.cmd:
            return asking.look_back(query)


def counted(found: list[wire.HistoryAnswer]) -> int:
    """Return the steps that an answer is of."""
    tables = [float(np.frombuffer(each.count, "<f4").sum()) for each in found if isinstance(each, wire.HistoryPart)]
    return round(sum(tables))


def test_an_observer_answers_for_its_history(new_run: Callable[..., RunDir]) -> None:
    """While the run goes on, after a takeover, and from the file once it has ended: the same."""
    directory = new_run(world=2)
    queries: tuple[Question, ...] = (wire.History(-4, "loss"), wire.WholeSteps(5, (0, 1)))
    with ranks(directory, 2) as group:
        with relayed(directory, finish=False):
            publish(group, directory, 1, 40)
            # What an observer has not written when it is killed, the next one asks the ranks for.
            until(lambda: last_recorded(directory.database) == {0: (0, 40), 1: (0, 40)}, "the record")
        with relayed(directory):
            publish(group, directory, 41, 60)
            alive = [ask(directory, query) for query in queries]
            assert counted(alive[0]) == 2 * 60
            assert alive[1][0] == wire.KeptSteps(5, tuple(range(1, 61)))
    for query, answer in zip(queries, alive, strict=True):
        ended = from_file(directory.database, 2, query)
        assert [wire.encode(each) for each in ended] == [wire.encode(each) for each in answer]


def publish(group: list[Rank], directory: RunDir, first: int, last: int) -> None:
    """Let all ranks publish these steps, until the observer has them."""
    for rank in group:
        rank.meet()
        rank.fill()

    def is_known() -> bool:
        extent = ask(directory, wire.History(1))[0]
        return isinstance(extent, wire.Extent) and extent.newest == last and extent.complete

    for rank in group:
        rank.publish(wire.TOPIC_STEPS, wire.Steps(rank.rank, records(*range(first, last + 1))))
    until(is_known, "the steps")
    until(lambda: counted(ask(directory, wire.History(1, "loss"))) == len(group) * last, "those of all ranks")


def test_one_rank_does_not_begin_the_next_generation(new_run: Callable[..., RunDir]) -> None:
    """It says that it has; the history goes on with the records of all in the generation that was found."""
    directory = new_run(world=2)
    with ranks(directory, 2) as group, relayed(directory):
        publish(group, directory, 1, 10)
        group[0].publish(wire.TOPIC_STEPS, wire.Steps(0, records(1), 1))
        for rank in group:
            rank.publish(wire.TOPIC_STEPS, wire.Steps(rank.rank, records(*range(11, 21))))
        until(lambda: counted(ask(directory, wire.History(1, "loss"))) == 2 * 20, "the steps after it")


def test_a_file_that_another_process_holds_holds_up_nobody(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay publishes, also frames, and answers, and says that the history is complete once it has all of it."""
    # Who waited for the file would wait for ever.
    monkeypatch.setattr(recording, "_LOCK_S", 1e6)
    directory = new_run(world=2)
    both = {0: (0, 45), 1: (0, 45)}
    with ranks(directory, 2) as group, zmq.Context() as context, context.socket(zmq.SUB) as sub:
        with relayed(directory):
            publish(group, directory, 1, 40)
        with contextlib.ExitStack() as later:
            with held(directory.database):
                relay = later.enter_context(relayed(directory))
                sub.linger = 0
                sub.subscribe(wire.TOPIC_STEPS)
                sub.connect(directory.address("observer", "pub"))
                for number in range(41, 46):
                    for rank in group:
                        until(lambda: passes(rank, number, sub), "what a rank publishes")  # noqa: B023 # used at once
                    extent, reply = ask(directory, wire.History(number))
                    assert isinstance(extent, wire.Extent)
                    assert isinstance(reply, wire.Reply)
                    assert (extent.complete, reply.done) == (False, True)
                sub.subscribe(wire.TOPIC_RUN)
                until(lambda: sub.poll(500) and wire.TOPIC_RUN in sub.recv_multipart(), "a frame")
            for rank in group:
                # They are asked for what is not in the file, and have nothing of it but what they have published.
                assert rank.fill().first_seq == 41
            until(lambda: counted(ask(directory, wire.History(1, "loss"))) == 2 * 45, "all of it")
            until(lambda: last_recorded(directory.database) == both, "the record")
            assert not relay.faults
    found = list(read_steps(directory.database))
    seqs = sorted((each.rank, step.seq) for each in found if isinstance(each, wire.Steps) for step in each.steps)
    assert seqs == [(rank, seq) for rank in range(2) for seq in range(1, 46)]


def passes(rank: Rank, number: int, sub: zmq.Socket[bytes]) -> bool:
    """Publish a record of a rank, and say whether it was heard soon after."""
    sent = rank.publish(wire.TOPIC_STEPS, wire.Steps(rank.rank, records(number)))
    while sub.poll(500):
        if sub.recv_multipart()[1:] == sent:
            return True
    return False


def test_a_disk_that_hangs_holds_up_nobody(new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch) -> None:
    """No read of the file has returned while the relay publishes and answers."""
    directory = new_run(world=1)
    # Of an observer before this one.
    recording.open_file(directory.database).close()
    goes_on = threading.Event()
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def hang(*arguments: Any, **named: Any) -> sqlite3.Connection:
        goes_on.wait()
        return connect(*arguments, **named)

    with ranks(directory, 1) as (rank,), zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.linger = 0
        sub.subscribe(wire.TOPIC_STEPS)
        monkeypatch.setattr(sqlite3, "connect", hang)
        with relayed(directory):
            try:
                sub.connect(directory.address("observer", "pub"))
                for number in range(1, 21):
                    until(lambda: passes(rank, number, sub), "what a rank publishes")  # noqa: B023 # used at once
                    extent, _ = ask(directory, wire.History(number))
                    assert isinstance(extent, wire.Extent)
                    assert not extent.complete
            finally:
                goes_on.set()
            rank.fill()
            until(lambda: counted(ask(directory, wire.History(1, "loss"))) == 20, "all of it")
