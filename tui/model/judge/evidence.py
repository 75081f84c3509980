"""The ranks' records of whole steps, added up to blocks of a few: what a verdict is found on. Pure and bounded."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ddptop.agent.wire import Step

Array = NDArray[np.floating[Any]]

OWN_PHASES: Final = ("data", "forward", "backward", "optimizer", "other")
"""Phases that are a rank's own time: all but waiting."""

BLOCK_STEPS: Final = 5
BLOCK_NS: Final = 500_000_000
"""A block holds as many steps as it takes to reach both."""
BLOCKS: Final = 128
SCALES: Final = (1, 4, 16)
"""Blocks in a window: the longer ones show what happens once in many steps."""
UNEVEN: Final = 0.1
"""Batches differ where the largest exceeds the usual one by this share."""
MOST_STEPS: Final = 1024
"""A block holds no more steps than this, however short they are."""

_WAIT: Final = len(OWN_PHASES)
_SAMPLES: Final = _WAIT + 1
_STARVED: Final = _SAMPLES + 1


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive steps of all ranks, as means over the steps; times in ms."""

    first_step: int
    last_step: int
    phases: Array
    """ranks x `OWN_PHASES`."""
    starved: Array
    """By rank, without a core to run on; 0 where that is not known."""
    least_wait: float | None
    """The shortest wait among the ranks, step by step: what even the last to arrive has to spend.
    None where collectives are not observed on every rank."""
    samples: Array
    """Drawn a step, by rank; 0 where nothing is known."""
    uneven_ms: float
    """What the group waits, step by step, for the rank with the largest batch; 0 where batches are alike."""
    step_ms: float
    """Mean over ranks."""


class Evidence:
    """Takes records as they come and holds the last `BLOCKS` blocks, and windows of them."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._open: list[dict[int, Step]] = []
        self._open_ns = 0
        self._count = 0
        self.windows: dict[int, deque[Block]] = {scale: deque(maxlen=BLOCKS // scale) for scale in SCALES}
        """By scale, oldest first; those of scale 1 are the blocks themselves."""

    def take(self, together: dict[int, Step]) -> bool:
        """Take in the records that all ranks made of one step; return whether a block was completed."""
        self._open.append(together)
        self._open_ns += next(reversed(together.values())).wall_ns
        if len(self._open) < BLOCK_STEPS or (self._open_ns < BLOCK_NS and len(self._open) < MOST_STEPS):
            return False
        self._add(_block(self._open, self._world))
        self._open, self._open_ns = [], 0
        return True

    def _add(self, block: Block) -> None:
        blocks = self.windows[1]
        blocks.append(block)
        self._count += 1
        for scale in SCALES[1:]:
            if self._count % scale == 0 and len(blocks) >= scale:
                self.windows[scale].append(_mean(list(blocks)[-scale:]))

    def retain(self, blocks: int) -> None:
        """Forget all but the newest blocks, and the windows that begin before them."""
        while len(self.windows[1]) > blocks:
            self.windows[1].popleft()
        first = self.windows[1][0].first_step
        for windows in self.windows.values():
            while windows and windows[0].first_step < first:
                windows.popleft()


def _mean(blocks: list[Block]) -> Block:
    least = [block.least_wait for block in blocks if block.least_wait is not None]
    return Block(
        first_step=blocks[0].first_step,
        last_step=blocks[-1].last_step,
        phases=np.mean([block.phases for block in blocks], axis=0),
        starved=np.mean([block.starved for block in blocks], axis=0),
        least_wait=float(np.mean(least)) if len(least) == len(blocks) else None,
        samples=np.mean([block.samples for block in blocks], axis=0),
        uneven_ms=float(np.mean([block.uneven_ms for block in blocks])),
        step_ms=float(np.mean([block.step_ms for block in blocks])),
    )


def _block(rows: list[dict[int, Step]], world: int) -> Block:
    table = np.array([[_numbers(row[rank]) for rank in range(world)] for row in rows], dtype=float)
    means = table.mean(axis=0)
    least = float(table[:, :, _WAIT].min(axis=1).mean())
    steps = [row[0].step for row in rows]
    return Block(
        first_step=steps[0],
        last_step=steps[-1],
        phases=means[:, :_WAIT],
        starved=means[:, _STARVED],
        least_wait=None if np.isnan(least) else least,
        samples=means[:, _SAMPLES],
        uneven_ms=_uneven(table),
        step_ms=float(np.mean([step.wall_ns for row in rows for step in row.values()])) / 1e6,
    )


def _numbers(step: Step) -> tuple[float, ...]:
    known = (step.data_ns, step.forward_ns, step.backward_ns, step.optimizer_ns, step.other_ns)
    wait = np.nan if step.wait_ns is None else step.wait_ns / 1e6
    return (*(each / 1e6 for each in known), wait, step.samples or 0, (step.starved_ns or 0) / 1e6)


def _uneven(table: Array) -> float:
    """Return the mean lead of the slowest rank over the average, where batch sizes explain who it is."""
    own, samples = table[:, :, :_WAIT].sum(axis=2), table[:, :, _SAMPLES]
    typical = np.median(samples, axis=1)
    if not (typical > 0).all() or float(np.mean(samples.max(axis=1) / typical)) < 1 + UNEVEN:
        return 0.0
    explained = np.take_along_axis(samples, own.argmax(axis=1)[:, None], axis=1)[:, 0] >= samples.max(axis=1)
    return float((own.max(axis=1) - own.mean(axis=1)).mean()) if explained.mean() > 0.6 else 0.0
