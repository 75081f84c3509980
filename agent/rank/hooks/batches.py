"""Distinguishes the batches on which the model is trained from those of an evaluation inside the loop.

An evaluation does not announce itself.  It is recognized because it draws, or first uses, its batches
without gradients; and, where the model is not under DDP, because it draws many batches from a
dataset that no backward pass has followed.  Its time counts as `other`: its batches are
neither this step's data nor its forward pass.  This module knows draws, and the shapes in a batch.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ddptop.agent.rank.records.stamps import BACKWARD, COPY, DATA, FORWARD, OTHER, Draw, StepStamps

_MOST_DATASETS: Final = 1024
"""Datasets that are remembered, the newest: a script may make a new one for each step."""
_MOST_TENSORS: Final = 16
"""Tensors of a batch that are looked at."""
_MOST_ITEMS: Final = 32
"""Items of each part of a batch among which they are looked for: a list may hold thousands of words."""
_MOST_PARTS: Final = 512
"""Parts and items of a batch in all."""
_TOKENS: Final = "input_ids"
"""The name of tokens in a batch of the Transformers library."""


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
        trained = [draw for draw, evaluation in zip(draws, evaluations, strict=True) if not evaluation]
        stamped.samples = _sum(draw.samples for draw in trained)
        stamped.tokens = _sum(draw.tokens for draw in trained)

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


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def sizes_of(torch: Any, batch: Any) -> tuple[int | None, int | None]:
    """Return the samples and the tokens of a batch, None where they are not known.

    Samples are the first dimension of its first tensor.  Tokens are the numbers in `input_ids`; without that name, of
    a first tensor that holds whole numbers for each sample where another tensor has the same shape: the next token for
    each.  Pictures are bytes or fractions, and classes one number a sample.  Padding counts, as it is computed, too.
    """
    tensors = _tensors(torch, batch)
    if not tensors:
        return None, None
    _, first = tensors[0]
    samples = len(first) if first.ndim else 1
    for name, tensor in tensors:
        if name == _TOKENS and tensor.ndim:
            return samples, tensor.numel()
    # Nested tensors have no shape.
    alike = [each for _, each in tensors if each.dtype == first.dtype and each.ndim == 2 and not each.is_nested]
    if first.dtype not in (torch.int64, torch.int32) or len(alike) < 2 or alike[0] is not first or first.shape[1] < 2:
        return samples, None
    return samples, first.numel() if any(each.shape == first.shape for each in alike[1:]) else None


def _tensors(torch: Any, batch: Any) -> list[tuple[object, Any]]:
    """Return the first tensors of a batch in order, each with the name that a mapping gives it."""
    found: list[tuple[object, Any]] = []
    parts: list[tuple[object, Any]] = [(None, batch)]
    for _ in range(_MOST_PARTS):
        if not parts or len(found) == _MOST_TENSORS:
            break
        name, part = parts.pop()
        if isinstance(part, torch.Tensor):
            found.append((name, part))
        elif isinstance(part, Mapping):
            parts += reversed([*itertools.islice(part.items(), _MOST_ITEMS)])
        elif isinstance(part, (list, tuple)):
            parts += [(None, item) for item in reversed([*itertools.islice(part, _MOST_ITEMS)])]
    return found
