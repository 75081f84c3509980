"""The records of suspects, for the judge of a large group: their last ones are asked for, the next ones heard at once.

A large group is judged from its summaries; the records of a rank are taken only while they would decide.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from ddptop.agent import wire
from ddptop.agent.observer.service.fills import Fills
from ddptop.agent.observer.service.forwarding import Forwarding
from ddptop.agent.run.rundir import RunDir

if TYPE_CHECKING:
    from ddptop.agent.observer.judge.judge import Judge

DETAIL: Final = 300
"""Last records that a suspect is asked for."""
_DETAIL_BYTES: Final = 8 << 20
"""Bytes of the records of a suspect that may wait behind its last ones."""


class _Detail:
    """The last records of a suspect, for the judge; those that it publishes meanwhile wait behind them."""

    def __init__(self, judge: Judge, rank: int) -> None:
        self._judge = judge
        self._rank = rank
        self._waiting: list[wire.Steps] | None = []
        self._room = _DETAIL_BYTES

    def has_room(self) -> bool:
        return True

    def take(self, payload: bytes) -> bool:
        with contextlib.suppress(wire.Unreadable):
            answer = wire.read_answer(payload)
            if isinstance(answer, wire.Steps) and answer.rank == self._rank:
                self._judge.records(answer)
        return True

    def end(self, _: bytes | None) -> None:
        waiting, self._waiting = self._waiting or [], None
        for message in waiting:
            self._judge.records(message)

    def add(self, message: wire.Steps) -> None:
        """Take in records that were published just now."""
        if self._waiting is None:
            self._judge.records(message)
        elif len(self._waiting) < DETAIL and self._room > 0:
            self._waiting.append(message)
            self._room -= len(wire.encode(message))


class Suspects:
    """The ranks of a large group whose records the judge wants now; for use from one thread."""

    def __init__(self, directory: RunDir, fills: Fills, forwarding: Forwarding) -> None:
        self._directory = directory
        self._fills = fills
        self._forwarding = forwarding
        self._details: dict[int, _Detail] = {}
        """By suspect, what is asked for of its records."""

    def restart(self) -> None:
        """Forget all: the ranks are other processes now."""
        self._details.clear()

    def ask(self, judge: Judge | None) -> frozenset[int]:
        """Ask the ranks that have become suspects of the judge for their last records; return all suspects."""
        if judge is None:
            self._details.clear()
            return frozenset()
        suspects = judge.suspects()
        for rank in self._details.keys() - suspects:
            del self._details[rank]
        for rank in suspects - self._details.keys():
            detail = self._details[rank] = _Detail(judge, rank)
            fill = wire.encode(wire.Fill(1, 0, DETAIL))
            if not (
                self._forwarding.is_there(rank)
                and self._fills.ask(rank, self._directory.address(rank, "cmd"), fill, "judge", detail)
            ):
                detail.end(None)
        return suspects

    def steps(self, message: wire.Steps) -> None:
        """Take in records that a rank has published; those of a suspect go to the judge."""
        if (detail := self._details.get(message.rank)) is not None:
            detail.add(message)
