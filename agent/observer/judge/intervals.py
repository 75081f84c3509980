"""Verdicts with a beginning, an end and a number, made of what is found from moment to moment. Pure and bounded.

What is found is a `Verdict` without a number; here it gets one, which it keeps until it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from ddptop.agent.wire import VERDICT_KINDS, Verdict

RENEWED_NS: Final = 1_000_000_000
"""The figures of a verdict that goes on change no more often than this, so that its line can be read."""
RESUMED_NS: Final = 90_000_000_000
"""Nanoseconds that a verdict of a former observer goes on without being found again: the slowest takes a minute."""
RECORDED_NS: Final = 10_000_000_000
"""Nanoseconds between two records of a verdict of which only the figures change."""
MOST: Final = 4096
"""Accusations whose last end is remembered, and changes that wait."""

_FIRST: Final = ("hang", "health")
"""Kinds that come before all others: a run that hangs does nothing else."""

Accusation = tuple[str, int | str | None, str | None]
"""Kind, rank or else host, and phase; of a kind that is of the group the kind alone."""


@dataclass(slots=True)
class _Open:
    verdict: Verdict
    renewed_ns: int
    recorded: Verdict
    """Its last form among the changes."""
    recorded_ns: int
    resumed_ns: int | None = None
    """For one of a former observer that was not found again yet: the time from which it goes on here."""


class Intervals:
    """The verdicts that go on."""

    def __init__(self, first: int, generation: int) -> None:
        """Count from `first` on."""
        self._next = first
        self.generation = generation
        self._open: dict[Accusation, _Open] = {}
        self._changes: list[Verdict] = []
        self._until: dict[Accusation, int] = {}
        """When each was over last."""

    def resume(self, verdicts: Iterable[Verdict], now_ns: int) -> None:
        """Go on with the last verdicts of another observer; one that is not found again within `RESUMED_NS` is over."""
        for verdict in verdicts:
            self._next = max(self._next, verdict.number + 1)
            if verdict.until_at_ns is not None:
                continue
            if verdict.generation == self.generation:
                self._open[accusation_of(verdict)] = _Open(verdict, 0, verdict, 0, resumed_ns=-1)
            else:
                # Its ranks had gone before this observer came.
                self._note(msgspec.structs.replace(verdict, until_at_ns=max(now_ns, verdict.since_at_ns)))

    def update(self, findings: Iterable[Verdict], ceased: Mapping[str, int | None], now_ns: int) -> None:
        """Take in what is found at this moment, and by kind when what was found before ceased."""
        found: dict[Accusation, Verdict] = {}
        for finding in findings:
            found.setdefault(accusation_of(finding), finding)
        for accusation, each in list(self._open.items()):
            if accusation in found:
                continue
            until = ceased.get(accusation[0]) or 0
            # What ceased before this began was another one of its kind.
            has_ceased = until > each.verdict.since_at_ns
            if each.resumed_ns is not None and not has_ceased:
                each.resumed_ns = now_ns if each.resumed_ns < 0 else min(each.resumed_ns, now_ns)
                if now_ns - each.resumed_ns < RESUMED_NS:
                    continue
                self._close(accusation, each.resumed_ns, now_ns)
            else:
                self._close(accusation, until if has_ceased else now_ns, now_ns)
        for accusation, finding in found.items():
            known = self._open.get(accusation)
            if known is not None and 0 <= now_ns - known.renewed_ns < RENEWED_NS:
                known.resumed_ns = None
                continue
            if known is None:
                since_ns = max(0, min(max(finding.since_at_ns, self._until.get(accusation, 0)), now_ns))
                named = {"number": self._next, "since_at_ns": since_ns, "said_at_ns": max(0, now_ns)}
                self._next += 1
            else:
                named = {name: getattr(known.verdict, name) for name in ("number", "since_at_ns", "said_at_ns")}
            verdict = msgspec.structs.replace(finding, **named, generation=self.generation)
            if known is None or (verdict != known.recorded and not 0 <= now_ns - known.recorded_ns < RECORDED_NS):
                self._note(verdict)
                recorded = verdict, now_ns
            else:
                recorded = known.recorded, known.recorded_ns
            self._open[accusation] = _Open(verdict, now_ns, *recorded)

    def close(self, at_ns: int) -> None:
        """End all that go on, at this time or when they were looked at last."""
        for accusation, each in list(self._open.items()):
            self._close(accusation, at_ns, max(at_ns, each.renewed_ns))

    def changes(self) -> list[Verdict]:
        """Return those that have begun or ended since this was last asked, or that have other figures for a while."""
        changes, self._changes = self._changes, []
        return changes

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Those that go on, the one that matters most first: what ends the training, then what costs most of it."""
        return tuple(sorted((each.verdict for each in self._open.values()), key=_weight))

    def _close(self, accusation: Accusation, until_ns: int, now_ns: int) -> None:
        verdict = self._open.pop(accusation).verdict
        until = max(verdict.since_at_ns, min(until_ns, max(now_ns, 0)))
        self._note(msgspec.structs.replace(verdict, until_at_ns=until))
        self._until.pop(accusation, None)
        self._until[accusation] = until
        if len(self._until) > MOST:
            del self._until[next(iter(self._until))]

    def _note(self, verdict: Verdict) -> None:
        self._changes.append(verdict)
        del self._changes[:-MOST]


def accusation_of(told: Verdict) -> Accusation:
    """Return what is the same in a fault from moment to moment."""
    if (kind := VERDICT_KINDS.get(told.kind)) is not None and kind.is_of_group:
        return told.kind, None, None
    return told.kind, (told.host or None) if told.rank is None else told.rank, told.phase


def _weight(verdict: Verdict) -> tuple[int, bool, float, int]:
    first = _FIRST.index(verdict.kind) if verdict.urgent and verdict.kind in _FIRST else len(_FIRST)
    return first, not verdict.urgent, -(verdict.cost_ms or 0.0), verdict.number


IN_WORDS: Final = {
    "data": "data loading",
    "copy": "copies to the device",
    "forward": "forward pass",
    "backward": "backward pass",
    "optimizer": "optimizer step",
    "other": "other code (before the forward pass, logging, evaluation)",
}
_NO_BACKWARD: Final = "outside of data loading and optimizer step (no backward pass is seen)"
"""The words for `other` where no rank has called `backward`: its forward and backward pass, if any, are in there."""
NO_CORE: Final = "no_core"
"""Kind of the finding of a rank that has no core, of which others than the judge look for the reason."""
MOST_SHARE: Final = 1e6
"""The largest share; a larger one is of steps that took no time at all."""


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for a fault, which is looked for once the fault is told."""

    text: str
    """One line for its end."""

    def added_to(self, finding: Verdict) -> Verdict:
        """Return the finding with its reason."""
        return msgspec.structs.replace(finding, text=f"{finding.text}: {self.text}")


def place(phase: str | None, *, backward_seen: bool) -> str:
    """Return the words for the phase that a delay is in; None is `other`."""
    phase = phase or "other"
    return IN_WORDS[phase] if backward_seen or phase != "other" else _NO_BACKWARD
