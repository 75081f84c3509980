"""Distinguishes the batches on which the model is trained from those of an evaluation inside the loop.

An evaluation does not announce itself.  It is recognized because it draws, or first uses, its batches
without gradients; and, where the model is not under DDP, because it draws many batches from a
dataset that no backward pass has followed.  Its time counts as `other`: its batches are
neither this step's data nor its forward pass.  This module knows draws, and the shape of a batch.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from ddptop.agent.rank.records.stamps import BACKWARD, COPY, DATA, FORWARD, OTHER, Draw, StepStamps

_MOST_DATASETS: Final = 1024
"""Datasets that are remembered, the newest: a script may make a new one for each step."""


class Datasets:
    """Numbers the datasets that a script draws from, without keeping them alive.

    The address alone is not enough: it comes again for another one, once its dataset is gone.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any] | None, int]] = {}
        """By address."""
        self._numbers = itertools.count(1)

    def number(self, dataset: Any) -> int:
        """Return the number of a dataset; of what cannot be referred to weakly, a list, that of its address."""
        known = self._known.get(id(dataset))
        if known is not None and (known[0] is None or known[0]() is dataset):
            return known[1]
        try:
            reference = weakref.ref(dataset)
        except TypeError:
            reference = None
        number = next(self._numbers)
        self._known.pop(id(dataset), None)
        self._known[id(dataset)] = reference, number
        if len(self._known) > _MOST_DATASETS:
            del self._known[next(iter(self._known))]
        return number


class Batches:
    """Remembers the datasets that a rank trains on."""

    def __init__(self) -> None:
        self._training: dict[int, None] = {}
        """Numbers of these, the newest last."""

    def sort(self, stamped: StepStamps) -> None:
        """Move the time of evaluations in this step to `other`, and leave their samples out."""
        draws = stamped.draws
        if len(draws) == 1 and draws[0].trained:
            # The usual step has one batch, trained on, and needs no further work.
            self._train_on(draws)
            return
        self._train_on(draw for draw in draws if draw.trained)
        evaluations = self._evaluations(draws)
        if not any(evaluations):
            return
        ends = [draw.begin for draw in draws[1:]] + [len(stamped.marks)]
        for draw, end, evaluation in zip(draws, ends, evaluations, strict=True):
            if evaluation:
                _to_other(stamped, draw.begin, end)
        sizes = [
            draw.samples
            for draw, evaluation in zip(draws, evaluations, strict=True)
            if draw.samples is not None and not evaluation
        ]
        stamped.samples = sum(sizes) if sizes else None

    def _train_on(self, draws: Iterable[Draw]) -> None:
        for draw in draws:
            if draw.dataset not in self._training:
                self._training[draw.dataset] = None
                if len(self._training) > _MOST_DATASETS:
                    del self._training[next(iter(self._training))]

    def _evaluations(self, draws: list[Draw]) -> list[bool]:
        counts = Counter(draw.dataset for draw in draws if not draw.evaluation)
        usual = max((counts[dataset] for dataset in {draw.dataset for draw in draws if draw.trained}), default=1)
        found: list[bool] = []
        last: dict[int, bool] = {}
        for draw in draws:
            # Several loaders may feed one step; one that is drawn from more often than those trained on does not.
            evaluation = draw.evaluation or (draw.dataset not in self._training and counts[draw.dataset] > usual)
            if draw.samples is None and not draw.trained:
                # The draw at the end of a loader is counted like its batches.
                evaluation = evaluation or last.get(draw.dataset, False)
            last[draw.dataset] = evaluation
            found.append(evaluation)
        return found


def _to_other(stamped: StepStamps, begin: int, end: int) -> None:
    for index in range(begin, end):
        stamp, phase = stamped.marks[index]
        if phase == BACKWARD:
            return
        if phase in (DATA, COPY, FORWARD):
            stamped.marks[index] = (stamp, OTHER)


def size_of(torch: Any, batch: Any) -> int | None:
    """Return the first dimension of the first tensor in a batch."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.ndim else 1
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    if isinstance(batch, (list, tuple)):
        for item in batch:
            size = size_of(torch, item)
            if size is not None:
                return size
    return None
