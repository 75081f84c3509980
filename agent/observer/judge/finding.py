"""What is found wrong at one moment; `intervals` makes a verdict with a beginning and an end of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ddptop.agent.wire import Hang

IN_WORDS: Final = {
    "data": "data loading",
    "copy": "copies to the device",
    "forward": "forward pass",
    "backward": "backward pass",
    "optimizer": "optimizer step",
    "other": "between the phases (logging, checkpoint, evaluation)",
}
_NO_BACKWARD: Final = "outside of data loading and optimizer step (no backward pass is seen)"
"""The words for `other` where no rank has called `backward`: its forward and backward pass, if any, are in there."""
NO_CORE: Final = "no_core"
"""Kind of the finding of a rank that has no core, of which others than the judge look for the reason."""
MOST_SHARE: Final = 1e6
"""A share beyond that is of steps that took no time at all."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong; the fields are those of `wire.Verdict`."""

    kind: str
    text: str
    rank: int | None = None
    phase: str | None = None
    cost_ms: float | None = None
    share: float | None = None
    since_step: int | None = None
    confidence: float | None = None
    every: int | None = None
    since_at_ns: int = 0
    urgent: bool = False
    """True for what ends the training, or makes it useless, if nobody acts."""
    hang: Hang | None = None
    host: str = ""


def place(phase: str | None, *, backward_seen: bool) -> str:
    """Return the words for the phase that a delay is in; None is `other`."""
    phase = phase or "other"
    return IN_WORDS[phase] if backward_seen or phase != "other" else _NO_BACKWARD


def in_ms(value: float) -> str:
    """Return `31 ms`, `4.2 ms`."""
    return f"{value:.0f} ms" if value >= 9.5 else f"{value:.1f} ms"
