"""The steps of all ranks, added up to blocks of a few, on which verdicts rest. Pure and bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ddptop.agent.wire import Step

Array = NDArray[np.floating[Any]]
Numbers = NDArray[np.int64]

OWN_PHASES: Final = ("data", "forward", "backward", "optimizer", "other", "copy")
"""Phases that are a rank's own time: all but waiting."""

BLOCK_STEPS: Final = 5
BLOCK_NS: Final = 500_000_000
"""A block holds as many steps as it takes to reach both."""
SCALES: Final = (1, 4, 16, 64)
"""Blocks in a window: the longer ones show what happens once in many steps, and what is little but lasts."""
MERGED: Final = 4
"""Windows of one scale that make one of the next."""
UNEVEN: Final = 0.1
"""Batches differ where the largest exceeds the usual one by this share."""
MOST_STEPS: Final = 1024
"""A block holds no more steps than this, however short they are."""
MOST_ROWS: Final = 65_536
"""Records that are held one by one, of all ranks together."""

BACKWARD: Final = OWN_PHASES.index("backward")
WAIT: Final = len(OWN_PHASES)
SAMPLES: Final = WAIT + 1
STARVED: Final = SAMPLES + 1
WALL: Final = STARVED + 1
"""Columns of a table: one of `OWN_PHASES`, and those after them."""
_EDGES: Final = [0, -1]


@dataclass(frozen=True, slots=True)
class Span:
    """How many windows are looked at, which depends on what a block is."""

    kept: int
    """Blocks, and of longer windows as many as they make; no fewer than are looked at."""
    windows: int
    """A suspicion looks at so many windows."""
    agreeing: int
    """Windows of these that have to agree."""
    lately: int
    """Windows that tell whether it goes on."""


STEPS: Final = Span(kept=128, windows=8, agreeing=7, lately=4)
"""Blocks of records: eight of them are four seconds, where steps are not longer than a tenth of a second."""
ROUNDS: Final = Span(kept=32, windows=4, agreeing=4, lately=2)
"""Blocks that are the ranks' summaries of one second: four seconds as well."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive steps of all ranks, as means over the steps; times in ms."""

    steps: Numbers
    """Numbers of the steps, in order, the first and the last among them; of a window those of its blocks' edges."""
    ends: Numbers
    """When the group had completed each of these, in wall-clock ns."""
    phases: Array
    """ranks x `OWN_PHASES`."""
    own: Array
    """By rank, the sum of these."""
    fed: Array
    """The same without the time in which there was no core to run on: that rank did not have more to do."""
    starved: Array
    """By rank, without a core to run on; 0 where that is not known."""
    least_wait: float | None
    """The shortest wait among the ranks, step by step: what even the last to arrive has to spend.
    None where collectives are not observed on every rank."""
    samples: Array
    """Drawn a step, by rank; 0 where nothing is known."""
    uneven_ms: float
    """Milliseconds a step that the group waits for the rank with the largest batch; 0 where batches are alike."""
    step_ms: float
    """Mean over ranks."""

    @property
    def first_step(self) -> int:
        """Number of the first step."""
        return int(self.steps[0])

    @property
    def last_step(self) -> int:
        """Number of the last step."""
        return int(self.steps[-1])


@dataclass(frozen=True, slots=True)
class Rows:
    """The same steps, one by one."""

    steps: Numbers
    ends: Numbers
    table: Array
    """steps x ranks x columns."""


class Evidence:
    """Takes blocks, or records as they come, and holds the last blocks and windows of them."""

    def __init__(self, world: int, span: Span = STEPS) -> None:
        self._world = world
        self._open: list[dict[int, Step]] = []
        self._open_ns = 0
        self._counts = dict.fromkeys(SCALES, 0)
        self.span = span
        self.windows: dict[int, deque[Block]] = {
            scale: deque(maxlen=max(span.kept // scale, span.windows)) for scale in SCALES
        }
        """By scale, oldest first; those of scale 1 are the blocks themselves."""
        self.rows: deque[Rows] = deque()
        """The newest steps one by one, by block, oldest first."""
        self._held = 0

    def take(self, together: dict[int, Step]) -> bool:
        """Take in the records that all ranks made of one step; return whether a block was completed."""
        self._open.append(together)
        last = next(reversed(together.values()))
        self._open_ns += last.wall_ns + last.counted_ns
        if len(self._open) < BLOCK_STEPS or (self._open_ns < BLOCK_NS and len(self._open) < MOST_STEPS):
            return False
        rows = _rows(self._open, self._world)
        self._open, self._open_ns = [], 0
        self.rows.append(rows)
        self._held += len(rows.steps)
        while len(self.rows) > 1 and self._held * self._world > MOST_ROWS:
            self._held -= len(self.rows.popleft().steps)
        self.add(block_of(rows))
        return True

    @property
    def missing_steps(self) -> int:
        """About how many more steps it takes until something can be found in them at all; 0 where it can."""
        blocks, missing = self.windows[1], self.span.windows - len(self.windows[1])
        if missing <= 0:
            return 0
        held = [next(iter(each.values())) for each in self._open]
        open_steps = held[-1].step - held[0].step + 1 if held else 0
        each_has: float = BLOCK_STEPS
        if blocks:
            each_has = (blocks[-1].last_step - blocks[0].first_step + 1) / len(blocks)
        elif held:
            # Of records that are not of each step there are as many in a block.
            each_has = max(BLOCK_STEPS * open_steps / len(held), BLOCK_NS * open_steps / max(1, self._open_ns))
        return max(1, round(missing * each_has - open_steps))

    def add(self, block: Block) -> None:
        """Take in a block."""
        for scale in SCALES:
            windows = self.windows[scale]
            windows.append(block)
            self._counts[scale] += 1
            if self._counts[scale] % MERGED or len(windows) < MERGED:
                break
            block = _mean(list(windows)[-MERGED:])

    def retain(self, blocks: int) -> None:
        """Forget all but the newest blocks, and the windows that begin before them."""
        while len(self.windows[1]) > blocks:
            self.windows[1].popleft()
        first = self.windows[1][0].first_step
        for windows in self.windows.values():
            while windows and windows[0].first_step < first:
                windows.popleft()

    def time_of(self, step: int) -> int | None:
        """Return when the group had completed a step, as near as is known; None where nothing is."""
        reaching = (windows for windows in self.windows.values() if windows and windows[0].first_step <= step)
        block = next((each for windows in reaching for each in windows if each.last_step >= step), None)
        if block is None:
            return None
        at = int(np.searchsorted(block.steps, step))
        before, after = max(0, at - 1), at
        if block.steps[at] == step or before == after:
            return int(block.ends[at])
        part = (step - int(block.steps[before])) / int(block.steps[after] - block.steps[before])
        return int(block.ends[before]) + round(part * int(block.ends[after] - block.ends[before]))


def block_of(rows: Rows) -> Block:
    """Return the means over some steps."""
    table = rows.table
    means = table.mean(axis=0)
    least = float(table[:, :, WAIT].min(axis=1).mean())
    own = means[:, :WAIT].sum(axis=1)
    return Block(
        steps=rows.steps,
        ends=rows.ends,
        phases=means[:, :WAIT],
        own=own,
        fed=np.maximum(0.0, own - means[:, STARVED]),
        starved=means[:, STARVED],
        least_wait=None if np.isnan(least) else least,
        samples=means[:, SAMPLES],
        uneven_ms=_uneven(table),
        step_ms=float(means[:, WALL].mean()),
    )


def _mean(blocks: Sequence[Block]) -> Block:
    least = [block.least_wait for block in blocks if block.least_wait is not None]
    phases, starved = (
        np.mean([each.phases for each in blocks], axis=0),
        np.mean([each.starved for each in blocks], axis=0),
    )
    own = phases.sum(axis=1)
    return Block(
        steps=np.concatenate([block.steps[_EDGES] for block in blocks]),
        ends=np.concatenate([block.ends[_EDGES] for block in blocks]),
        phases=phases,
        own=own,
        fed=np.maximum(0.0, own - starved),
        starved=starved,
        least_wait=float(np.mean(least)) if len(least) == len(blocks) else None,
        samples=np.mean([block.samples for block in blocks], axis=0),
        uneven_ms=float(np.mean([block.uneven_ms for block in blocks])),
        step_ms=float(np.mean([block.step_ms for block in blocks])),
    )


def _rows(together: Sequence[dict[int, Step]], world: int) -> Rows:
    return Rows(
        steps=np.array([row[0].step for row in together], dtype=np.int64),
        ends=np.array([max(step.end_at_ns for step in row.values()) for row in together], dtype=np.int64),
        table=np.array([[_numbers(row[rank]) for rank in range(world)] for row in together], dtype=float),
    )


def _numbers(step: Step) -> tuple[float, ...]:
    wait = np.nan if step.wait_ns is None else step.wait_ns / 1e6
    return (
        (step.data_ns or 0) / 1e6, (step.forward_ns or 0) / 1e6, (step.backward_ns or 0) / 1e6,
        (step.optimizer_ns or 0) / 1e6,
        step.other_ns / 1e6, (step.copy_ns or 0) / 1e6, wait, step.samples or 0, (step.starved_ns or 0) / 1e6,
        step.wall_ns / 1e6,
    )  # fmt: skip


def _uneven(table: Array) -> float:
    """Return the mean lead of the slowest rank over the average, where batch sizes explain who it is."""
    own, samples = table[:, :, :WAIT].sum(axis=2), table[:, :, SAMPLES]
    typical = median(samples, 1)
    if not (typical > 0).all() or float(np.mean(samples.max(axis=1) / typical)) < 1 + UNEVEN:
        return 0.0
    explained = np.take_along_axis(samples, own.argmax(axis=1)[:, None], axis=1)[:, 0] >= samples.max(axis=1)
    return float((own.max(axis=1) - own.mean(axis=1)).mean()) if explained.mean() > 0.6 else 0.0


def median(values: Array, axis: int = 0) -> Array:
    """Return the median along an axis, as `numpy.median` does, but for arrays without NaN."""
    ordered = np.sort(values, axis=axis)
    half, odd = divmod(ordered.shape[axis], 2)
    upper: Array = ordered.take(half, axis=axis)
    return upper if odd else (ordered.take(half - 1, axis=axis) + upper) / 2


def middle(values: Array) -> float:
    """Return the median of a row of numbers."""
    return float(median(values))
