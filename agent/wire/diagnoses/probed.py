"""A probe of the hardware and what it has found, as it is kept with the run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from ddptop.agent.wire.diagnoses.probes import Facts

Values = dict[str, list[float]]
"""By experiment, its measurements in the order of time."""


class Experiments(msgspec.Struct):
    """The experiments of a rank in one go."""

    rates: Values = {}
    """Of floating-point operations a second for `compute` and `host`, of bytes a second for all others."""
    ran: Values = {}
    """By measurement, the part of its time in which the rank did not wait for a core; empty where that is not known."""


class Rank(msgspec.Struct):
    """The experiments of one rank."""

    rank: int
    host: str = ""
    alone: Experiments = msgspec.field(default_factory=Experiments)
    together: Experiments = msgspec.field(default_factory=Experiments)
    again: list[Experiments] = []
    """Alone some more times, where it looked slow or is compared with one that did."""
    facts: Facts | None = None
    """While it was alone; where it was alone once more, those of the first such time."""
    resent: int | None = None
    """Segments of TCP that its host has sent again while messages were sent."""
    problem: str = ""


class Connection(msgspec.Struct):
    """The messages from one rank to another."""

    sender: int
    receiver: int
    size: int
    """Bytes of a large message."""
    large_s: list[float]
    small_s: list[float]
    again_s: list[float] = []
    """Of large ones once more, where it looked slow or is compared with one that did."""
    small_again_s: list[float] = []


class Probe(msgspec.Struct):
    """A probe and what it has found."""

    run: str
    step: int
    at: float
    """Seconds since the epoch."""
    took_s: float = 0.0
    """Seconds for which the ranks were held for it."""
    sentences: list[str] = []
    """The differences, the most important first; one that says so where there is none."""
    notes: list[str] = []
    """What is worth knowing and makes no rank slower than another one."""
    left_out: list[str] = []
    ranks: list[Rank] = []
    connections: list[Connection] = []
    small_s: list[float] = []
    """Seconds of small messages of the whole group."""
    large_s: list[float] = []
    """Seconds of large ones."""
    large_size: int = 0


def typical(values: Sequence[float]) -> float | None:
    """Return the median; None where there is none."""
    return statistics.median(values) if values else None


def speed(connection: Connection) -> float:
    """Return bytes a second."""
    took = typical(connection.large_s)
    return connection.size / took if took else 0.0
