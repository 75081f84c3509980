"""A large group: the summaries of all ranks, brought together to one block a second, and the records of a few ranks.

The records are asked for because one of these ranks may be slow.  Pure and bounded.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

import numpy as np

from ddptop.agent.observer.judge.blocks import Block, Evidence, Rows, block_of
from ddptop.agent.observer.judge.join import StepJoin
from ddptop.agent.wire import Step, Summary

COMPLETE = 0.9
"""Part of the ranks that must have told something before a round ends without the others."""
_LARGEST: Final = (1 << 63) - 1


class Rounds:
    """Takes the summaries of all ranks, each of which sends one a second, and gives back rounds of them."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._newest: dict[int, Summary] = {}
        """By rank, of this round."""
        self._numbers = [0] * world
        self._repeated: set[int] = set()
        self._last_step = 0

    def take(self, summary: Summary) -> Block | None:
        """Take in a summary; return those of all ranks once there is one of each.

        A rank that tells nothing for as long as another one takes to tell three times is left out: it counts
        as being like the middle of the others, so that neither is it blamed nor does it hide who is.
        """
        rank = summary.rank
        if rank >= self._world or summary.number <= self._numbers[rank]:
            return None
        self._numbers[rank] = summary.number
        third = rank in self._repeated
        if rank in self._newest:
            self._repeated.add(rank)
        self._newest[rank] = summary
        if len(self._newest) < self._world and not (third and len(self._newest) >= COMPLETE * self._world):
            return None
        told, self._newest, self._repeated = self._newest, {}, set()
        return self._block(told)

    def _block(self, told: dict[int, Summary]) -> Block:
        table = np.array([_numbers(summary) for summary in told.values()], dtype=float)
        whole = np.empty((self._world, table.shape[1]))
        if len(told) < self._world:
            # Those that are missing.
            whole[:] = np.median(table, axis=0)
        whole[list(told)] = table
        # Medians: one rank that is ahead, or makes up its numbers, moves none of them.
        step, count, end, wall = (
            statistics.median_low([getattr(each, name) for each in told.values()])
            for name in ("step", "steps", "end_at_ns", "wall_ns")
        )
        after, self._last_step = self._last_step + 1, min(max(step, self._last_step + 1), _LARGEST)
        steps = sorted({min(max(after, step - count + 1), self._last_step), self._last_step})
        ends = [max(0, end - (self._last_step - each) * max(0, wall)) for each in steps]
        return block_of(Rows(np.array(steps, dtype=np.int64), np.array(ends, dtype=np.int64), whole[None]))


def _numbers(summary: Summary) -> tuple[float, ...]:
    wait = np.nan if summary.wait_ns is None else summary.wait_ns / 1e6
    return (
        (summary.data_ns or 0) / 1e6, (summary.forward_ns or 0) / 1e6, (summary.backward_ns or 0) / 1e6,
        (summary.optimizer_ns or 0) / 1e6,
        summary.other_ns / 1e6, (summary.copy_ns or 0) / 1e6, wait, summary.samples or 0.0,
        (summary.starved_ns or 0) / 1e6, summary.wall_ns / 1e6,
    )  # fmt: skip


MOST_SUSPECTS: Final = 8
LEAST_ORDINARY: Final = 3
"""Ranks that a suspect is compared with, at least."""


class Detail:
    """The records of suspects and of ordinary ranks."""

    def __init__(self) -> None:
        self.ranks: frozenset[int] = frozenset()
        """The ranks of which records would decide."""
        self._suspects: frozenset[int] = frozenset()
        self.places: dict[int, int] = {}
        """By rank, its column in the evidence."""
        self.evidence = Evidence(0)
        self._join = StepJoin(0)

    def ask(self, suspects: Sequence[int], usual: Sequence[int]) -> None:
        """Ask for these suspects, and for as many of these ordinary ranks; nothing changes while the suspects stay."""
        if frozenset(suspects) == self._suspects:
            return
        self._suspects = frozenset(suspects)
        ordinary = [rank for rank in usual if rank not in self._suspects][: max(LEAST_ORDINARY, len(suspects))]
        self.ranks = self._suspects | frozenset(ordinary) if suspects else frozenset()
        self.places = {rank: place for place, rank in enumerate(sorted(self.ranks))}
        self.evidence = Evidence(len(self.ranks))
        self._join = StepJoin(len(self.ranks))

    def take(self, rank: int, step: Step) -> None:
        """Take in a record; in order within each rank."""
        place = self.places.get(rank)
        together = None if place is None else self._join.take(place, step)
        if together is not None:
            self.evidence.take(together)
