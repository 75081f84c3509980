"""The kinds of verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class VerdictKind(NamedTuple):
    """A kind of verdicts."""

    meaning: str
    """What the line of such a verdict says, as the manual has it."""
    word: str = ""
    """In the list of runs, where no rank is to blame; empty where that is its name."""
    level: str = "warning"
    """That of its line among the events."""
    is_of_group: bool = False
    """True where it is the same verdict whichever rank is found to be the cause."""


VERDICT_KINDS: Final[Mapping[str, VerdictKind]] = {
    "slow_rank": VerdictKind(
        "one rank holds the others back; where the delay comes every so many steps, how often"
    ),
    "slow_host": VerdictKind("all ranks of one host hold the others back: look at the machine, not at a rank"),
    "taking_turns": VerdictKind("in each step another rank is late: no single one is to blame"),
    "unequal_work": VerdictKind("the shares of work are unequal", "shares"),
    "input_bound": VerdictKind("all ranks wait for data alike", "data"),
    "no_core": VerdictKind(
        "one rank is ready to run and has no core for much of its step: other processes take it, and their pids; or "
        "all take the cores from each other, because their threads are more than these",
        "no core",
    ),
    "communication_bound": VerdictKind("communication takes most of the step", "all-reduce"),
    "memory_creep": VerdictKind(
        "memory grows and does not settle; with [what grows and what holds it](diagnosis.md#memory)", "memory"
    ),
    "no_communication": VerdictKind(
        "the ranks call no collective: each trains on its own. Told after 20 steps and 5 s on every rank; where there "
        "is a process group, after 200 steps and 15 s",
        "no DDP?",
    ),
    # One rank's NaN is everybody's a step later, and a run stands once, whoever is found to be the cause.
    "health": VerdictKind("losses or gradients are not finite", is_of_group=True),
    "hang": VerdictKind(
        "the run makes no steps, and will not by itself: see [below](#a-run-that-hangs)", "hangs", "error", True
    ),
    "standing": VerdictKind(
        "the run makes no steps, for a reason that may be in order: a rank works that the others wait for, or none is "
        "in a collective, as in a long evaluation",
        "stands", "info", True,
    ),
    "diverged": VerdictKind(
        "the parameters of ranks are no longer the same; only where they are [compared](#parameters-that-diverge)"
    ),
}  # fmt: skip
