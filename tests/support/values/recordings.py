"""Recordings: all of one, as an onlooker that reads nothing else would get it, and the frames of a run in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from ddptop.agent import wire
from ddptop.agent.record.recording import frame_rows, open_file, read_beats, read_events, read_ranks, read_steps
from ddptop.agent.run.rundir import RunDir


def read_history(database: Path) -> Iterator[wire.Telemetry]:
    """Yield `Hello` and steps of the ranks, one generation after the other, then events and the last `Beat` of each."""
    of_ranks = [
        each for each in (*read_ranks(database), *read_steps(database)) if isinstance(each, wire.Hello | wire.Steps)
    ]
    yield from sorted(of_ranks, key=lambda each: each.generation)
    yield from read_events(database)
    yield from read_beats(database)


def record_frames(directory: RunDir, run: wire.RunFrame, ranks: Sequence[wire.RankFrame]) -> None:
    """Record the frames of a run and of its ranks."""
    with closing(open_file(directory.database)) as connection, connection:
        for row in frame_rows(wire.encode(run), [wire.encode(rank) for rank in ranks]):
            connection.execute(*row)
