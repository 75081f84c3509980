"""The history that an observer keeps: as an onlooker gets it, as the next observer does, and after the end."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import zmq
from support.fakes.ranks import Rank, ranks, step
from support.fakes.relay import relayed
from support.harness import DEADLINE_S, until
from support.locking import held

from ddptop.agent import wire
from ddptop.agent.observer.history import kept
from ddptop.agent.observer.history.answers import answer
from ddptop.agent.observer.history.saved import opened
from ddptop.agent.observer.record import recording
from ddptop.agent.observer.record.recorder import Recorder
from ddptop.agent.observer.record.recording import last_recorded, read_steps
from ddptop.agent.observer.relay.looking_back import LookingBack
from ddptop.agent.run.identity import Process
from ddptop.agent.run.rundir import RunDir


def records(*numbers: int) -> tuple[wire.Step, ...]:
    """Return records of these steps, each with its number as its loss."""
    return tuple(
        msgspec.structs.replace(step(number), step=number, end_at_ns=number * 10**9, loss=float(number))
        for number in numbers
    )


def ask(directory: RunDir, query: wire.History) -> list[wire.HistoryAnswer]:
    """Return the answer of the observer of a run."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
        asking.linger = 0
        asking.connect(directory.address("observer", "cmd"))
        asking.send(wire.encode(query))
        found: list[wire.HistoryAnswer] = []
        while not found or not isinstance(found[-1], wire.Reply):
            assert asking.poll(int(1000 * DEADLINE_S)), "no answer"
            found.append(wire.read_history(asking.recv()))
    return found


def counted(found: list[wire.HistoryAnswer]) -> int:
    """Return the steps that an answer is of."""
    tables = [float(np.frombuffer(each.count, "<f4").sum()) for each in found if isinstance(each, wire.HistoryPart)]
    return round(sum(tables))


def test_an_observer_answers_for_its_history(new_run: Callable[..., RunDir]) -> None:
    """While the run goes on, after a takeover, and from the file once it has ended: the same."""
    directory = new_run(world=2)
    query = wire.History(-4, "loss")
    with ranks(directory, 2) as group:
        with relayed(directory, finish=False):
            publish(group, directory, 1, 40)
            # What an observer has not written when it is killed, the next one asks the ranks for.
            until(lambda: last_recorded(directory.database) == {0: (0, 40), 1: (0, 40)}, "the record")
        with relayed(directory):
            publish(group, directory, 41, 60)
            alive = ask(directory, query)
            assert counted(alive) == 2 * 60
    ended = opened(directory.database, 2, ended=True)
    assert ended.complete
    assert [wire.encode(each) for each in answer(ended, query)] == [wire.encode(each) for each in alive]


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


class Silent:
    """A recorder of which only the file matters."""

    def __init__(self) -> None:
        self.saved: list[Any] = []

    def save(self, *arguments: Any) -> None:
        self.saved.append(arguments)


def looking_back(tmp_path: Path, said: list[str]) -> LookingBack:
    recorder: Any = Silent()
    assert hasattr(Recorder, "save")
    return LookingBack(tmp_path / "run.db", 1, recorder, lambda text, _: said.append(text))


def opened_up(back: LookingBack) -> LookingBack:
    """Wait until a history has all that is recorded."""

    def is_complete() -> bool:
        back.advance()
        extent, *_ = back.answer(wire.History(1))
        return isinstance(extent, wire.Extent) and extent.complete

    until(is_complete, "the history")
    return back


def test_an_error_of_the_history_costs_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said twice, once and when no history is kept any more; nothing is raised, and questions are answered."""
    said: list[str] = []
    back = looking_back(tmp_path, said)
    opened_up(back)

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(kept.Kept, "steps", fail)
    for number in range(1, 100):
        back.steps(wire.Steps(0, records(number)))
    assert len(said) == 2
    assert "broken" in said[0]
    (reply,) = back.answer(wire.History(3))
    assert isinstance(reply, wire.Reply)
    assert not reply.done
    assert reply.id == 3
    back.finish(over=True)
    back.save_last()


def test_a_shortage_that_passes_costs_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started it is tried again later, and what came meanwhile is in the history."""
    now = 0.0
    said: list[str] = []
    recorder: Any = Silent()
    back = LookingBack(tmp_path / "run.db", 1, recorder, lambda text, _: said.append(text), lambda: now)

    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", refuse)
        for number in range(1, 100):
            back.steps(wire.Steps(0, records(number)))
    assert len(said) == 1
    now += 2
    opened_up(back)
    assert counted(list(back.answer(wire.History(1, "loss")))) == 99


def test_another_process_of_a_rank_counts_from_one_again(tmp_path: Path) -> None:
    """In a job that nobody restarts as a whole; the same process, found again, is the same."""
    back = opened_up(looking_back(tmp_path, []))
    back.meet(0, 0, Process(7, 1.0))
    back.steps(wire.Steps(0, records(1, 2, 3, 4)))
    back.meet(0, 0, Process(7, 1.0))
    back.steps(wire.Steps(0, records(1, 2)))
    assert counted(list(back.answer(wire.History(1, "loss")))) == 4
    back.meet(0, 0, Process(8, 2.0))
    back.steps(wire.Steps(0, records(1, 2)))
    assert counted(list(back.answer(wire.History(1, "loss")))) == 2


def test_one_rank_does_not_begin_the_next_generation(new_run: Callable[..., RunDir]) -> None:
    """It says that it has; the history goes on with the records of all in the generation that was found."""
    directory = new_run(world=2)
    with ranks(directory, 2) as group, relayed(directory):
        publish(group, directory, 1, 10)
        group[0].publish(wire.TOPIC_STEPS, wire.Steps(0, records(1), 1))
        for rank in group:
            rank.publish(wire.TOPIC_STEPS, wire.Steps(rank.rank, records(*range(11, 21))))
        until(lambda: counted(ask(directory, wire.History(1, "loss"))) == 2 * 20, "the steps after it")


def test_a_number_that_no_rank_has_reached_is_left_out(tmp_path: Path) -> None:
    """As the number of a step or of its record: those after it count."""
    recorder: Any = Silent()
    back = LookingBack(tmp_path / "run.db", 1, recorder, lambda *_: None, began_at_ns=time.time_ns())
    (far,) = records(3)
    back.steps(wire.Steps(0, records(1, 2)))
    back.steps(wire.Steps(0, (msgspec.structs.replace(far, step=2**52),)))
    back.steps(wire.Steps(0, (msgspec.structs.replace(far, seq=2**52),)))
    opened_up(back)
    back.steps(wire.Steps(0, records(3, 4)))
    extent, *_ = back.answer(wire.History(1))
    assert isinstance(extent, wire.Extent)
    assert extent.newest == 4
    assert counted(list(back.answer(wire.History(1, "loss")))) == 4


def test_a_slow_disk_has_one_snapshot_at_a_time(tmp_path: Path) -> None:
    """The next one is made when the one before was written, or has failed; then it has all."""
    now, recorder = 0.0, Silent()
    back = LookingBack(tmp_path / "run.db", 1, cast("Any", recorder), lambda *_: None, lambda: now)
    opened_up(back)
    for minute in range(1, 5):
        now = 1_000.0 * minute
        back.steps(wire.Steps(0, records(minute)))
        back.advance()
    assert len(recorder.saved) == 1
    _, failed, written = recorder.saved[0]
    written()
    back.advance()
    assert len(recorder.saved) == 2
    (everything, _, _), (_, failed, _) = recorder.saved
    failed()
    now += 1_000.0
    back.advance()
    assert len(recorder.saved) == 3
    assert len(recorder.saved[2][0](1 << 30)) >= len(everything(1 << 30))


def test_a_file_that_another_process_holds_holds_up_nobody(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay publishes and answers, and says that the history is complete only once it has all of it."""
    # Who begins reads what the observer before has recorded, and waits for the file so long each time.
    monkeypatch.setattr(recording, "_LOCK_S", 0.1)
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


def test_a_lock_is_no_damage(new_run: Callable[..., RunDir]) -> None:
    """Of an ended run: nothing is told of a file that another process holds, and all of it once it is free."""
    directory = new_run(world=2)
    with ranks(directory, 2) as group, relayed(directory):
        publish(group, directory, 1, 40)
    query = wire.History(1, "loss")
    with held(directory.database):
        early = opened(directory.database, 2, ended=True)
        early.advance(time.monotonic() + 1)
        assert not early.complete
    late = opened(directory.database, 2, ended=True)
    assert late.complete
    for kept_in_file in (early, late):
        kept_in_file.advance(time.monotonic() + 1)
        assert counted(list(answer(kept_in_file, query))) == 2 * 40
    later = opened(directory.database, 2, ended=True)
    with held(directory.database):
        assert not counted(list(answer(later, query)))
        assert not later.complete
    while not later.complete:
        later.advance(time.monotonic() + 1)
    assert counted(list(answer(later, query))) == 2 * 40
