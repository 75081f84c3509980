"""A run that has been recorded, as a dashboard takes it in that comes late."""

from __future__ import annotations

import sqlite3
import time

import numpy as np
import pytest

from ddptop.agent import rundir, wire
from ddptop.agent.group import recording
from ddptop.tui.frame import Frame
from ddptop.tui.link import Link

SOON_S = 0.1
"""CPU time that one poll may take: what it holds up a key, however busy the machine."""


def recorded_run(name: str, world: int, steps: int) -> rundir.RunDir:
    """Make an ended run whose ranks did so many steps of 100 ms, with the step's number as its loss."""
    directory = rundir.create(
        rundir.Run(name, name, "toy.py", (), world, "gloo", "cpu", 10**9, True, state="finished", exit_code=0)
    )
    with recording.open_file(directory.database) as connection:
        for number in range(1, steps + 1):
            step = wire.Step(number, number, number * 10**8, 10**8, 0, 10**8, 0, 0, 0, 0, float(number), 32)
            for rank in range(world):
                message = wire.Steps(rank, (step,))
                connection.execute(*recording.row(message, wire.encode(message)))
        for rank in range(world):
            beat = wire.Beat(rank, steps * 10**8, "ended", "", steps, steps * 10**8, steps)
            connection.execute(*recording.row(beat, wire.encode(beat)))
    connection.close()
    return directory


def is_full(frame: Frame) -> bool:
    """Say whether every rank shows what it does."""
    return all(rank.step is not None and rank.loss is not None and rank.step_ms is not None for rank in frame.ranks)


def attach(directory: rundir.RunDir) -> tuple[float, float, float, Link]:
    """Attach as the dashboard does, 20 polls a second on a clock that jumps over the pauses.

    Returns:
        Seconds to the first full frame, seconds until all is taken in, the longest poll.
    """
    began = time.monotonic()
    link = Link(directory, "test", looks_back=True)
    passed = time.monotonic() - began
    full = longest = 0.0
    while not link.settled:
        began = time.process_time()
        link.poll()
        took = time.process_time() - began
        longest = max(longest, took)
        passed += max(took, 0.05)
        full = full or (passed if is_full(link.frame(time.time())) else 0.0)
        assert passed < 600
    return full, passed, longest, link


def test_an_ended_run_is_there_at_once_and_whole_soon_after() -> None:
    """The ranks' numbers come first; the plot's whole course follows, and no key waits for it."""
    directory = recorded_run("ended", world=8, steps=6000)
    full, whole, longest, link = attach(directory)
    try:
        assert full < 2
        assert full <= whole
        assert longest < SOON_S
        past = link.store.past
        assert past is not None
        assert past.history.complete
        for rank in range(8):
            read = past.history.read(rank, "loss")
            assert read.count.sum() == pytest.approx(6000, abs=16)
            assert np.all((read.low <= read.steps) & (read.high >= read.low))
            assert past.history.span(rank) == (1, 6000)
        assert link.frame(time.time()).ranks[7].loss == 6000
    finally:
        link.close()


def test_a_damaged_recording_gives_what_can_be_read() -> None:
    """Rows that are no messages, and a file cut short, end in a dashboard that works."""
    directory = recorded_run("damaged", world=2, steps=600)
    with sqlite3.connect(directory.database) as connection:
        connection.execute("UPDATE steps SET payload = ? WHERE rowid % 7 = 0", (b"\xff" * 9,))
        connection.execute("UPDATE steps SET payload = NULL WHERE rowid % 11 = 0")
    connection.close()
    link = attach(directory)[-1]
    assert link.frame(time.time()).ranks[0].loss is not None
    link.close()
    directory.database.write_bytes(directory.database.read_bytes()[:9000])
    link = attach(directory)[-1]
    assert link.frame(time.time()).state == "finished"
    link.close()
