"""How many steps the training takes, where the script does not say so: as the library knows it that runs the loop.

That is the Trainer of transformers, Lightning, a schedule of DeepSpeed, or the total of a bar of tqdm that moves with
the steps.  A number of theirs is shown with their name.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, NamedTuple

from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.hooks.around import replace
from ddptop.agent.rank.hooks.imports import after_import

_MOST_BARS: Final = 16
"""Newest bars that are followed: an evaluation makes one each time."""
_LEAST_STEPS: Final = 5
_TOLERANCE: Final = 0.1
"""A bar reports its number some times a second only."""


class Total(NamedTuple):
    """The steps of the whole training, and the library that says so."""

    steps: int
    by: str


@dataclass
class _Bar:
    bar: Callable[[], Any]
    steps: int
    """Steps that were complete when it began."""
    number: int
    """The number that it began at."""
    first: tuple[int, int] | None = None
    """Its number and that of the steps when it was looked at first."""


class Totals:
    """The totals of libraries, so far. They are noted on the training thread and read by the agent's."""

    def __init__(self, steps: Callable[[], int]) -> None:
        """Know nothing yet; `steps` returns the number of steps completed."""
        self._steps = steps
        self._told: Total | None = None
        self._bars: list[_Bar] = []

    def tell(self, remaining: object, by: str) -> None:
        """Take in how many steps a library is to make from now on; infinite and unknown numbers are left out."""
        if isinstance(remaining, int | float) and 0 < remaining < math.inf:
            self._told = Total(self._steps() + int(remaining), by)

    def tell_bar(self, bar: Any) -> None:
        """Take in a new bar of tqdm."""
        if not bar.disable and bar.total:
            self._bars.append(_Bar(weakref.ref(bar), self._steps(), int(bar.n)))
            del self._bars[:-_MOST_BARS]

    def forget(self) -> None:
        """Forget the totals that were reported in another count of the steps."""
        self._told, self._bars = None, []

    def current(self) -> Total | None:
        """Return what is known, which a bar reports only once it has moved with some steps; called now and then."""
        if self._told is None:
            self._told = self._of_bars()
        if self._told is not None and self._told.by == "tqdm" and self._steps() > self._told.steps:
            # A bar of each epoch, by which the number of these is not known.
            self._told, self._bars = Total(0, ""), []
        return self._told if self._told and self._told.steps else None

    def _of_bars(self) -> Total | None:
        enclosing: _Bar | None = None
        for each in self._bars:
            bar = each.bar()
            # A closed one is disabled.
            if bar is None or bar.disable or not bar.total or bar.n >= bar.total:
                continue
            if each_step := self._a_step(each, int(bar.n)):
                steps = math.ceil((bar.total - each.number) / each_step)
                if enclosing is None or (outer := enclosing.bar()) is None:
                    return Total(each.steps + steps, "tqdm")
                # One bar for the epochs, and another in each of them.
                return Total(enclosing.steps + steps * int(outer.total - enclosing.number), "tqdm")
            enclosing = each
        return None

    def _a_step(self, bar: _Bar, number: int) -> int | None:
        """Return by how much a bar moves in a step, None where it does not move with the steps, or not yet."""
        steps = self._steps()
        if bar.first is None:
            bar.first = number, steps
        made, moved = steps - bar.first[1], number - bar.first[0]
        if made < _LEAST_STEPS:
            return None
        each_step = round(moved / made)
        close = abs(moved - each_step * made) <= max(each_step, _TOLERANCE * each_step * made)
        return each_step if each_step and close else None


def watch(totals: Totals, faults: Faults) -> None:
    """Ask the libraries that run loops, once the script has imported them."""

    def of_trainer(_handler: Any, _args: Any, state: Any, *_: Any) -> None:
        totals.tell(state.max_steps - state.global_step, "Trainer")

    def of_lightning(loop: Any, *_: Any) -> None:
        totals.tell(loop.trainer.estimated_stepping_batches - loop.trainer.global_step, "Lightning")

    def of_schedule(schedule: Any, *_: Any) -> None:
        totals.tell(schedule.total_num_steps, "DeepSpeed")

    def of_bar(bar: Any, *_: Any) -> None:
        totals.tell_bar(bar)

    for module, owner, method, told in (
        ("transformers.trainer_callback", "CallbackHandler", "on_train_begin", of_trainer),
        ("pytorch_lightning.loops.fit_loop", "_FitLoop", "on_run_start", of_lightning),
        ("lightning.pytorch.loops.fit_loop", "_FitLoop", "on_run_start", of_lightning),
        ("deepspeed.runtime.lr_schedules", "WarmupDecayLR", "__init__", of_schedule),
        ("deepspeed.runtime.lr_schedules", "WarmupCosineLR", "__init__", of_schedule),
        ("tqdm.std", "tqdm", "__init__", of_bar),
    ):
        act = functools.partial(_follow, owner=owner, method=method, told=faults.guard(told))
        after_import(module, faults.guard(act))


def _follow(module: ModuleType, *, owner: str, method: str, told: Callable[..., None]) -> None:
    """Call `told` with the arguments of a method after each call of it."""
    kind = getattr(module, owner, None)
    if kind is None or not hasattr(kind, method):
        return
    original = getattr(kind, method)

    @functools.wraps(original)
    def followed(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        told(*args)
        return result

    replace(kind, method, followed)
