"""All of a recording, as an onlooker that reads nothing else would get it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ddptop.agent import wire
from ddptop.agent.record.recording import read_end, read_events, read_ranks, read_steps


def read_history(database: Path) -> Iterator[wire.Telemetry]:
    """Yield `Hello` and steps of the ranks, one generation after the other, then events and the last `Beat` of each."""
    of_ranks = [
        each for each in (*read_ranks(database), *read_steps(database)) if isinstance(each, wire.Hello | wire.Steps)
    ]
    yield from sorted(of_ranks, key=lambda each: each.generation)
    yield from read_events(database)
    yield from read_end(database)
