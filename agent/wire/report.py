"""The report on a run, above all on its end: the first cause, its consequences, and what can be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ddptop.agent.wire.telemetry import Event, Verdict


class EndKind(NamedTuple):
    """A kind of end of a run."""

    name: str
    """The word for programs: `device_memory`."""
    title: str
    """The failure in a few words."""
    advice: str
    """The remedy, one line."""


@dataclass(frozen=True, slots=True)
class RankEnd:
    """One rank, at its end or at the last moment that is known of it."""

    rank: int
    host: str
    pid: int
    state: str
    """`finished`, `stopped`, `failed`, `killed`, `alive` or `unknown`."""
    told: str
    """Its end in a few words: `ValueError: bad lr`, `killed by SIGKILL`; empty while it lives."""
    exit_code: int | None = None
    """Of its process; None where it lives, a signal ended it, or nobody knows."""
    signal: str | None = None
    """Name of the signal that ended it."""
    ended_at_ns: int | None = None
    step: int | None = None
    """The last step that it completed."""
    memory_bytes: int | None = None
    """Of the device, or of the process on the CPU, when its last sign of life was sent."""
    memory_total_bytes: int | None = None
    heard_at_ns: int | None = None
    """When that was."""
    device: str | None = None
    health: str | None = None
    """A problem in its numbers: `loss is nan since step 123`."""
    where: str = ""
    """`train.py:31 main`: the user's line of its traceback or crash; empty where it is not known."""
    output: tuple[str, ...] = ()
    """The last lines that it printed before its traceback or crash; only those of the first cause, or of a lost run."""


@dataclass(frozen=True, slots=True)
class Report:
    """A run and its end, as far as they are known."""

    run: str
    """Its name."""
    program: str
    world: int
    backend: str | None
    device: str | None
    launched: bool
    """True for a run that ddptop launched, False for one that was started by hand."""
    begun_at_ns: int
    ended_at_ns: int | None
    state: str
    exit_code: int | None
    cause: str
    """The first cause in one line; empty where there is none."""
    kind: EndKind | None
    """The kind of failure; None where the run has not failed."""
    evidence: str
    """The kernel's word on the memory at that end; empty where it says nothing."""
    first: RankEnd | None
    """The rank that is the first cause."""
    ranks: tuple[RankEnd, ...]
    """All ranks that have reported, the first cause included."""
    collateral: str
    """The other ends in one line."""
    traceback: str
    """The stack of the first cause, several lines; empty where there is none."""
    stack: tuple[str, ...]
    """The same in lines, with the frames of libraries folded, and those of a recursion once."""
    traceback_rank: int | None
    """The rank whose it is, None for that of the launcher."""
    events: tuple[Event, ...]
    """The last events, oldest first."""
    verdicts: tuple[Verdict, ...]
    """The last verdicts, oldest first."""
    versions: Mapping[str, str]
    """By name: `ddptop`, `python`, `torch`, `system`; those that are not known are missing. ddptop and the system are
    those that make the report."""
    launched_as: str
    """The line for a shell that launches it again, secrets masked; of a job started by hand, its program."""
    hang: Verdict | None = None
    """The hang that goes on, or in which the run came to its end; None where there was none."""
    injected: str = ""
    """Faults that were put into the run on purpose, one line; empty where there are none."""
    stood: bool = False
    """True where the record tells where the ranks stood in that hang."""

    @property
    def failed(self) -> bool:
        """True where there is an end to explain."""
        return self.state in ("failed", "lost") or (bool(self.cause) and self.state in ("starting", "running"))
