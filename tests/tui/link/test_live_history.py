"""A run that has been recorded, as a dashboard takes it in that comes late."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from ddptop.agent import wire
from ddptop.agent.client.frame import Frame
from ddptop.agent.client.watch import CATCH_UP_S, DRAIN_S, Link
from ddptop.agent.end import survey
from ddptop.agent.observer.model.run_model import RECENT_RECORDS
from ddptop.agent.observer.model.store import Store
from ddptop.agent.record import recording
from ddptop.agent.record.history.stored import Writer
from ddptop.agent.run import rundir
from ddptop.agent.run.identity import Process
from ddptop.agent.run.rundir import Member
from ddptop.tui.cli.output import status
from ddptop.tui.link.source import frame_now

TICK_S = 0.0001
"""What goes by on the link's clock whenever it looks at it: once a record."""


class Attached(NamedTuple):
    """What was counted while a run was taken in."""

    link: Link
    until_full: int
    """Records taken in before each rank showed what it does."""
    most_a_poll: int


class Ticking:
    """A clock on which only looking at it takes time, so that the same work takes the same number of polls anywhere."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += TICK_S
        return self.now


def recorded_run(name: str, world: int, steps: int) -> rundir.RunDir:
    """Make an ended run whose ranks did so many steps of 100 ms, with the step's number as its loss."""
    directory = rundir.create(
        rundir.Run(name, name, "toy.py", (), world, "gloo", "cpu", 10**9, True, state="finished", exit_code=0)
    )
    with closing(recording.open_file(directory.database)) as connection:
        history = Writer(connection, world)
        for number in range(1, steps + 1):
            step = wire.Step(number, number, number * 10**8, 10**8, 0, 10**8, 0, 0, 0, 0, float(number), 32)
            for rank in range(world):
                message = wire.Steps(rank, (step,))
                connection.execute(*recording.row(message, wire.encode(message)))
                history.rows.steps(rank, [step], 0)
            if number % 100 == 0:
                history.settle()
                history.write()
                history.written()
                while history.fold(1 << 30):
                    pass
        for rank in range(world):
            beat = wire.Beat(rank, steps * 10**8, "ended", "", steps, steps * 10**8, steps)
            connection.execute(*recording.row(beat, wire.encode(beat)))
        connection.commit()
    return directory


def is_full(frame: Frame) -> bool:
    """Say whether every rank shows what it does."""
    return all(rank.step is not None and rank.loss is not None and rank.step_ms is not None for rank in frame.ranks)


def attach(directory: rundir.RunDir, monkeypatch: pytest.MonkeyPatch) -> Attached:
    """Attach as the dashboard does, and count the records that are taken in."""
    taken = 0

    def counting(owner: type, name: str) -> None:
        take = getattr(owner, name)

        def count(*arguments: object) -> None:
            nonlocal taken
            taken += 1
            take(*arguments)

        monkeypatch.setattr(owner, name, count)

    counting(Store, "recall")
    counting(Store, "apply")
    link = Link(directory, "test", looks_back=True, clock=Ticking())
    most = until_full = 0
    for _ in range(10_000):
        if link.settled:
            break
        before = taken
        link.poll()
        most = max(most, taken - before)
        if not until_full and is_full(frame_now(link)):
            until_full = taken
    assert link.settled
    return Attached(link, until_full, most)


def test_an_ended_run_is_there_at_once_and_whole_soon_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks' numbers come first; the plot's whole course follows, and no key waits for it."""
    directory = recorded_run("ended", world=8, steps=6000)
    link, until_full, most_a_poll = attach(directory, monkeypatch)
    try:
        assert 0 < until_full < RECENT_RECORDS + 100 < 8 * 6000
        assert most_a_poll <= (DRAIN_S + CATCH_UP_S) / TICK_S + 2
        history = link.history
        assert history is not None
        assert history.by_step.complete
        for rank in range(8):
            read = history.by_step.read(rank, "loss")
            assert read.count.sum() == 6000
            assert np.all((read.low <= read.steps) & (read.high >= read.low))
            assert history.by_step.span(rank) == (1, 6000)
        assert frame_now(link).ranks[7].loss == 6000
    finally:
        link.close()


@pytest.mark.parametrize("state", ["running", "finished"])
def test_earlier_generations_are_not_replayed(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each restart is marked where the ranks had come, and for any number of steps only the newest are read."""
    for steps in (300, 3000):
        directory = restarted_run(f"{state}-{steps}", state, [steps, steps // 2, 20])
        if state == "running":
            directory.update(observer=Process(2**22 + 1, 0.0))
            for rank in range(2):
                directory.write_member(Member(rank, rank, 2, Process(2**22 + 1, 0.0), "host", 2, "", "", None))
        recalled: list[wire.Telemetry] = []
        monkeypatch.setattr(Store, "recall", counted(Store.recall, recalled))
        with closing(Link(directory, "test", clock=Ticking())) as link:
            # Nothing is done for the run here.
            monkeypatch.setattr(link, "_meet", survey.look)
            for _ in range(2000):
                link.poll()
                if link.complete:
                    break
            assert link.complete
            frame = frame_now(link)
        directory.update(state="finished", observer=None)
        assert [(each.generation, each.step) for each in frame.restarts] == [(1, steps), (2, steps * 3 // 2)]
        assert sum(isinstance(each, wire.Steps) for each in recalled) <= RECENT_RECORDS + 16


def counted(take: Callable[..., None], messages: list[wire.Telemetry]) -> Callable[..., None]:
    """Return a method that notes the messages that it takes."""

    def noting(store: Store, message: wire.Telemetry, now: float) -> None:
        messages.append(message)
        take(store, message, now)

    return noting


def restarted_run(name: str, state: str, steps: list[int]) -> rundir.RunDir:
    """Make a run of two ranks that was started anew after so many steps, of which the first are removed."""
    directory = rundir.create(
        rundir.Run(name, name, "toy.py", (), 2, "gloo", "cpu", 10**9, True, state=state, max_restarts=3)
    )
    connection = recording.open_file(directory.database)
    with connection:
        for generation, last in enumerate(steps):
            for rank in range(2):
                hello = wire.Hello(
                    wire.PROTOCOL, name, name, rank, rank, 2, 7, generation + 5, "h", "p", "0", "3", generation
                )
                connection.execute(*recording.row(hello, wire.encode(hello)))
            for number in range(1, last + 1):
                step = wire.Step(number, number, number * 10**8, 10**8, 0, 10**8, 0, 0, 0, 0, 1.0, 32)
                # Rank 1 was ahead of the other when they were ended.
                for rank in range(2) if number < last else (1,):
                    message = wire.Steps(rank, (step,), generation)
                    connection.execute(*recording.row(message, wire.encode(message)))
            if not generation:
                # Of the first start no step is left but the last of each rank.
                connection.execute(recording.KEEP_LAST, (1 << 60,))
                connection.execute("DELETE FROM steps")
    connection.close()
    return directory


def test_a_damaged_recording_gives_what_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are no messages, and a file cut short, end in a dashboard that works."""
    directory = recorded_run("damaged", world=2, steps=600)
    with sqlite3.connect(directory.database) as connection:
        connection.execute("UPDATE steps SET payload = ? WHERE rowid % 7 = 0", (b"\xff" * 9,))
        connection.execute("UPDATE steps SET payload = NULL WHERE rowid % 11 = 0")
    connection.close()
    link = attach(directory, monkeypatch).link
    assert frame_now(link).ranks[0].loss is not None
    link.close()
    directory.database.write_bytes(directory.database.read_bytes()[:9000])
    link = attach(directory, monkeypatch).link
    assert frame_now(link).state == "finished"
    link.close()


def test_an_ended_run_shows_what_was_wrong_at_its_end() -> None:
    """In the observer's order, though each is recorded with the end of the run as its end; what was over is over."""
    directory = recorded_run("verdicts", 2, 10)
    end = 10**9
    ended = [
        wire.Verdict(number, kind, text, number * 10**8, until, None, share=share)
        for number, kind, text, until, share in (
            (1, "slow_rank", "rank 1 was slow", end - 1, 0.5),
            (2, "input_bound", "all wait for data", end + 5, 0.3),
            (3, "health", "loss is nan", end + 5, None),
        )
    ]
    going_on = tuple(msgspec.structs.replace(ended[place], until_at_ns=None) for place in (2, 1))
    connection = recording.open_file(directory.database)
    with connection:
        connection.execute(*recording.row(at_end := wire.Verdicts(end + 5, going_on), wire.encode(at_end)))
        for verdict in ended:
            for row in recording.verdict_rows(verdict):
                connection.execute(*row)
    connection.close()
    with closing(Link(directory, "test")) as link:
        while not link.settled:
            link.poll()
        frame = frame_now(link)
    assert [verdict.text for verdict in frame.verdicts] == ["loss is nan", "all wait for data"]
    assert [event.text for event in frame.events if event.text.startswith("no longer")] == [
        "no longer: rank 1 was slow"
    ]
    assert [line["text"] for line in status.as_json(frame)["verdicts"]] == ["loss is nan", "all wait for data"]
