"""Two runs, or a run and those before it, compared number by number and in one sentence. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from ddptop.agent.client.comparison import facts
from ddptop.agent.client.comparison import statistics as stats
from ddptop.agent.client.comparison.measured import Floats, Measured, lost, steady
from ddptop.agent.client.comparison.statistics import LEAST, Change, Estimate, Statistic, change, middle, p50, p95
from ddptop.agent.text import Complaint, plural, ranks_in_spans

PHASES: Final = ("data", "forward", "backward", "optimizer", "wait", "other")
"""Phases of a step that the history has."""
MOST_HISTORY: Final = 10
"""Runs before it that a run is compared with."""
_WINDOW: Final = 0.05
"""Part of a run over which its loss is taken: single losses differ more than two runs do."""
_LEAST_WINDOW: Final = 5
"""Columns of that at least."""
_GAP: Final = 3.0
"""Times the usual distance of two losses from which on there is none in between."""
_KNOWN: Final = 0.5
"""Part of the numbers of the rank with most that each rank needs."""
_USEFUL: Final = 0.3
"""Interval beyond which it is not said that there is no difference: half as long again would be none."""
_SURELY: Final = 1.2
"""Times the interval of a single number by which a phase has to differ: any of them may do so by chance."""
_LEAST_PART: Final = 0.01
"""Part of a step by which a phase has to differ."""
_AGREES: Final = 0.5
"""Part of its change, as compared with the others together, that a phase has as compared with most of them, and by
itself."""
_EXPLAIN: Final = frozenset({"hosts", "device", "backend", "torch", "python", "batch", "variables", "faults", "world"})
"""Circumstances that may change all phases alike, beside the load of the machine."""
_WAITING: Final = 2.0
"""Times its interval by which a step has to differ where no phase does: in waiting the noise of all ranks meets."""
_MOST_OF: Final = 0.5
"""Part of a difference that one rank's own time makes up where it is the cause."""
_MOST_PHASES: Final = 2
"""Phases that are named."""
_ALIKE: Final = "; nothing recorded differs: run both again"
"""No interval within a run knows what differs from start to start, such as how memory is laid out."""


class NothingBefore(Complaint):
    """There is no earlier run with which one can be compared."""

    code = 1


class Number(NamedTuple):
    """One number of both runs."""

    key: str
    """Its name in JSON."""
    label: str
    unit: str
    """`ms`, `bytes`, `%` of a number from 0 to 1, `/s`, `s`, or nothing."""
    first: Estimate | None
    second: Estimate | None
    change: Change | None = None
    """From the first to the second; None where there is no first one, or no interval."""
    note: str = ""
    gap: str = ""
    """Whose numbers are mostly missing, so that the others stand for that rank; empty where nobody's."""


@dataclass(frozen=True)
class Comparison:
    """All that can be said of two runs beside each other."""

    first: str
    """Name of the run, or the runs in words."""
    second: str
    obstacle: str
    """Why they cannot be compared; empty where they can."""
    differs: Sequence[tuple[str, str, str]]
    """What differs of their circumstances: its name, and the texts of both."""
    left_out: Sequence[tuple[str, Sequence[str]]]
    """By run, what is not in the numbers."""
    steps: tuple[int, int]
    """How many steps of each are."""
    numbers: Sequence[Number]
    outcome: str
    """`slower`, `faster`, `same`, `unknown`, or `other` where they cannot be compared."""
    verdict: str
    """In one sentence."""

    def number(self, key: str) -> Number | None:
        """Return a number of that name."""
        return next((each for each in self.numbers if each.key == key), None)


class _Run:
    """One run, and its usual steps."""

    def __init__(self, run: Measured) -> None:
        self.run, self.world = run, run.world
        self.where, self.left_out = steady(run)
        self.count = int(self.where.sum())

    @property
    def is_cut(self) -> bool:
        """True where the first steps of the run are not known one by one."""
        return bool(len(self.run.steps)) and int(self.run.steps[0]) > 1

    def mean(self, name: str) -> Floats:
        """Return a number of the usual steps, the mean over ranks."""
        return self.run.of(name)[self.where]

    def by_rank(self, name: str) -> Floats:
        """Return a number of the usual steps that all ranks know: (ranks, steps)."""
        table = self._table(name)
        return table[:, np.isfinite(table).all(axis=0)]

    def _table(self, name: str) -> Floats:
        table = self.run.values.get(name)
        return np.empty((self.world, 0)) if table is None else table[:, self.where]

    def gap(self, name: str) -> str:
        """Return which rank knows few of the numbers that others know, in words; empty where none does."""
        known = np.isfinite(self._table(name)).sum(axis=1)
        few = int(np.argmin(known))
        return f"rank {few} of {self.run.name} lacks {name} numbers" if known[few] < _KNOWN * known.max() else ""

    def estimate(self, name: str, statistic: Statistic, scale: float = 1.0) -> Estimate | None:
        return _estimate(self.mean(name) * scale, statistic)

    def beside(self, phase: str, others: Sequence[str]) -> Estimate | None:
        """Return the time of a phase as a part of others of the same step: what slows the machine slows both."""
        together = np.nansum([self.mean(name) for name in others], axis=0)
        return _estimate(self.mean(phase) / np.where(together > 0, together, np.nan), middle)

    def own(self) -> Estimate | None:
        """Return the time of a step without waiting."""
        return _estimate(self.mean("step") - np.nan_to_num(self.mean("wait")), middle)

    def fullest(self) -> Estimate | None:
        """Return the memory of the rank that has most; of the second half, once it has what it needs."""
        table = self.by_rank("memory")
        table = table[:, table.shape[1] // 2 :]
        return _estimate(table[int(np.argmax(np.median(table, axis=1)))], p95) if table.shape[1] else None

    def slowest(self) -> tuple[int, Estimate | None]:
        """Return the rank with most time of its own in a step, and by how many ms that exceeds the others' median."""
        step, waited = self.by_rank("step"), self.by_rank("wait")
        if self.world < 2 or not step.shape[1] or step.shape != waited.shape:
            return 0, None
        own = step - waited
        rank = int(np.argmax(np.median(own, axis=1)))
        others = np.median(np.delete(own, rank, axis=0), axis=0)
        return rank, _estimate(own[rank] - others, p50)


def _estimate(series: Floats, statistic: Statistic) -> Estimate | None:
    known = series[np.isfinite(series)]
    return stats.estimate(known, statistic) if len(known) > 1 else None


def loss_at(run: Measured, step: float) -> Estimate | None:
    """Return the loss around a step, over the last steps before it; None where the run has not come so far, or no
    finite loss is known there.
    """
    curve = run.curves.get("loss")
    if run.newest < step or curve is None or not len(before := np.flatnonzero(curve.steps <= step)):
        return None
    last = int(before[-1])
    near = np.diff(curve.steps[max(0, last - _LEAST_WINDOW) : last + _LEAST_WINDOW + 1])
    # Losses are read from time to time: only a gap that is long beside those around it is one.
    if step - curve.steps[last] > max(_WINDOW * step, _GAP * float(np.median(near)) if len(near) else 0.0):
        return None
    first = min(int(np.searchsorted(curve.steps, step * (1 - _WINDOW))), last + 1 - _LEAST_WINDOW)
    return _estimate(curve.mean[max(0, first) : last + 1], middle)


def compare(first: Measured, second: Measured, *, anyway: bool = False) -> Comparison:
    """Compare two runs; where they cannot be compared nothing but that is said, unless `anyway`."""
    obstacle = facts.obstacle(first.facts, second.facts)
    differs = facts.differences(first.facts, second.facts)
    if obstacle and not anyway:
        verdict = f"cannot be compared: {obstacle}"
        return Comparison(first.name, second.name, obstacle, differs, (), (0, 0), (), "other", verdict)
    one, other = _Run(first), _Run(second)
    outcome, verdict = _verdict(one, other, differs)
    return Comparison(
        first.name, second.name, obstacle, differs,
        [(each.run.name, each.left_out) for each in (one, other)],
        (one.count, other.count), list(_numbers(one, other)), outcome, verdict,
    )  # fmt: skip


def _numbers(one: _Run, other: _Run) -> Iterable[Number]:
    def number(key: str, label: str, unit: str, of: Callable[[_Run], Estimate | None], whole: str = "") -> Number:
        first, second = of(one), of(other)
        gap = (one.gap(whole) or other.gap(whole)) if whole else ""
        return Number(key, label, unit, first, second, change(first, second), gap=gap)

    yield number("step_p50_ms", "step p50", "ms", lambda run: run.estimate("step", p50), "step")
    yield number("step_p95_ms", "step p95", "ms", lambda run: run.estimate("step", p95))
    for phase in PHASES:
        yield number(f"{phase}_ms", phase, "ms", lambda run, phase=phase: run.estimate(phase, middle))  # type: ignore[misc]
    yield number("collective_wait_ms", "collectives: wait", "ms", lambda run: _estimate(run.run.wait, middle))
    yield number("transfer_ms", "collectives: transfer", "ms", lambda run: _estimate(run.run.transfer, middle))
    yield number("samples_per_s", "samples", "/s", lambda run: run.estimate("samples", middle, run.world))
    yield number("tokens_per_s", "tokens", "/s", lambda run: run.estimate("tokens", middle, run.world))
    yield number("mfu", "MFU", "%", lambda run: run.estimate("mfu", middle))
    yield number("memory_bytes", "memory, fullest rank", "bytes", _Run.fullest, "memory")
    (rank, excess), (rank_, excess_) = one.slowest(), other.slowest()
    if excess is not None or excess_ is not None:
        which = f"rank {rank}" if rank == rank_ else f"rank {rank}, rank {rank_}"
        yield Number("slowest_excess_ms", "slowest rank, excess", "ms", excess, excess_, None, which)
    newest = max((len(each.run.steps) for each in (one, other) if each.is_cut), default=0)
    theirs = lost(other.run)
    for name, seconds in lost(one.run).items():
        # Stalls are those of the verdicts, of the whole run.
        note = f"in the newest {newest:,} steps" if newest and name != "stalls" else ""
        first, second = (Estimate(each, 0.0, 1.0) for each in (seconds, theirs[name]))
        yield Number(f"lost_{name}_s", f"lost to {name}", "s", first, second, None, note)
    yield from _losses(one.run, other.run)


def _losses(one: Measured, other: Measured) -> Iterable[Number]:
    curves = [each.curves.get("loss") for each in (one, other)]
    ends = [curve.steps[-1] for curve in curves if curve is not None]
    if len(ends) < 2:
        return
    step = int(min(ends))
    found = loss_at(one, step), loss_at(other, step)
    broken = [f"{run.name}: not finite by step {run.broken_at:,}" for run in (one, other) if run.broken_at is not None]
    told = None if broken else change(*found)
    yield Number("loss_at_step", f"loss at step {step:,}", "", *found, told, "; ".join(broken))
    if not broken and one.batch > 0 and other.batch > 0:
        sample = min(ends[0] * one.batch, ends[1] * other.batch)
        found = loss_at(one, sample / one.batch), loss_at(other, sample / other.batch)
        yield Number("loss_at_sample", f"loss at sample {sample:,.0f}", "", *found, change(*found))


class _Phase(NamedTuple):
    """A phase that takes another time in the second run, beyond what all its other phases do."""

    name: str
    part: float
    """Of the first run's step."""
    within: float


def _verdict(
    one: _Run, other: _Run, differs: Sequence[tuple[str, str, str]], spread: Change | None = None
) -> tuple[str, str]:
    """Return the outcome, and the sentence: by the step as a whole, or by phases, each of which has less noise.

    Args:
        one: the first run, or the newest of several.
        other: the second run.
        differs: circumstances that differ.
        spread: the change of the step against several runs, where there are some.
    """
    step = spread or change(one.estimate("step", p50), other.estimate("step", p50))
    few = [f"{plural(each.count, 'step')} in {each.run.name}" for each in (one, other) if each.count < LEAST]
    if few or step is None:
        return "unknown", f"cannot tell: {', '.join(few) or 'no step times'}; {LEAST} usual ones are needed of each"
    phases = _phases(one, other, 0.0 if spread is None else spread.within)
    part, within = step
    if not step.is_told:
        part, within = sum(each.part for each in phases), math.hypot(*(each.within for each in phases))
        if abs(part) <= within:
            return _same(step.within)
    outcome = "slower" if part > 0 else "faster"
    named = [each.name for each in phases if each.part * part > 0]
    where = f": {' and '.join(named)}, {_whose(one, other, named)}" if named else ": all phases alike"
    if not named:
        own = change(one.own(), other.own())
        if own is None or not own.is_told or own.part * part < 0:
            where = _straggler(one, other, part) or ": wait, all ranks"
            if abs(part) <= _WAITING * within:
                return _same(_WAITING * within)
        elif not _EXPLAIN.intersection(name for name, _, _ in differs):
            longer, machine = ("longer", "busier") if own.part > 0 else ("less", "calmer")
            told = f"{abs(own.part) * 100:.1f} % ± {own.within * 100:.1f}"
            return "unknown", f"cannot tell: all phases take {told} {longer} alike, as on a {machine} machine"
        else:
            where = _straggler(one, other, part) or where
    since = _since(differs) if differs or spread else _ALIKE
    return outcome, f"{other.run.name} is {outcome} by {abs(part) * 100:.1f} % ± {within * 100:.1f}{where}{since}"


def _same(within: float) -> tuple[str, str]:
    if within > _USEFUL:
        return "unknown", f"cannot tell: noise alone makes differences of ± {within * 100:,.0f} %"
    return "same", f"no difference that the noise allows (± {within * 100:.1f} %)"


def _grown(one: _Run, other: _Run, name: str) -> Floats | None:
    """Return by how many ms a number of each rank has grown; None where that is not known of each."""
    before, after = one.by_rank(name), other.by_rank(name)
    if len(before) != len(after) or not (before.shape[1] and after.shape[1]):
        return None
    grown: Floats = np.median(after, axis=1) - np.median(before, axis=1)
    return grown


def _straggler(one: _Run, other: _Run, part: float) -> str:
    """Return the rank for which all others wait longer, or no longer, and its phase; empty where there is none."""
    sign = math.copysign(1.0, part)
    apart = {name: sign * grown for name in ("step", *PHASES) if (grown := _grown(one, other, name)) is not None}
    if one.world < 2 or not {"step", "wait"} <= apart.keys():
        return ""
    step = apart.pop("step")
    own = step - apart.pop("wait")
    rank = int(np.argmax(own))
    if own[rank] - float(np.median(np.delete(own, rank))) < _MOST_OF * float(np.median(step)):
        return ""
    return f": {max(apart, key=lambda name: float(apart[name][rank]), default='')}, rank {rank}"


def _phases(one: _Run, other: _Run, floor: float) -> list[_Phase]:
    """Return the phases that take another time, the one that changes the step most first.

    What changes all phases in the same ratio is the machine's pace, and no phase's.
    """
    if (step := one.estimate("step", p50)) is None:
        return []
    ratios, parts = dict[str, float](), dict[str, float]()
    for name in PHASES:
        before, after = one.estimate(name, middle), other.estimate(name, middle)
        # The cause of a wait is a phase of another rank.
        if name != "wait" and before is not None and after is not None and before.value > 0:
            ratios[name], parts[name] = after.value / before.value, before.value / step.value
    found = list[_Phase]()
    while len(ratios) > 1 and len(found) < _MOST_PHASES:
        # Beside one that takes longer all others seem shorter: the pace is that of most of them.
        pace = float(np.median([ratio for name, ratio in ratios.items() if parts[name] > _LEAST_PART] or [1.0]))
        apart = {name: (ratio - pace) * parts[name] for name, ratio in ratios.items()}
        for name in sorted(apart, key=lambda name: -abs(apart[name])):
            rest = [each for each in ratios if each != name]
            beside = change(one.beside(name, rest), other.beside(name, rest))
            if beside is None:
                continue
            part, within = (each * parts[name] for each in beside)
            is_told = abs(part) > max(_SURELY * within, _LEAST_PART, floor)
            # What is beside a long phase may be so short that its own noise seems to be a pace.
            itself = (ratios[name] - 1) * parts[name]
            if is_told and min(apart[name] / part, itself / part) > _AGREES:
                found.append(_Phase(name, part, _SURELY * within))
                break
        else:
            break
        del ratios[found[-1].name]
    return sorted(found, key=lambda each: -abs(each.part))


def _whose(one: _Run, other: _Run, phases: Sequence[str]) -> str:
    """Return the ranks that make the difference in some phases."""
    found = [each for phase in phases if (each := _grown(one, other, phase)) is not None]
    grown = np.abs(np.sum(found, axis=0)) if found else np.zeros(one.world)
    ranks = [rank for rank, more in enumerate(grown) if more > grown.max() / 3]
    return "all ranks" if len(ranks) in (0, one.world) else ranks_in_spans(ranks)


def _since(differs: Sequence[tuple[str, str, str]]) -> str:
    """Return the one circumstance that differs: `, since torch 2.14`."""
    if not differs:
        return ""
    if len(differs) > 1:
        return f"; {', '.join(name for name, _, _ in differs)} differ"
    ((name, _, after),) = differs
    return f", since {name} {after}" if len(after) <= 40 and after != facts.UNKNOWN else f", since other {name}"


def against(runs: Sequence[Measured], run: Measured) -> Comparison:
    """Compare a run with those of the same script before it, the newest first: with their middle, and their spread.

    Raises:
        NothingBefore: there is none to compare with.
    """
    alike = [each for each in runs if not facts.obstacle(each.facts, run.facts) and _Run(each).count >= LEAST]
    alike = alike[:MOST_HISTORY]
    if not alike:
        raise NothingBefore(f"no earlier run of {run.facts.shown['program']} can be compared with {run.name}: name one")
    pairs = [compare(each, run) for each in alike]
    newest = pairs[0]
    if len(alike) == 1:
        return newest
    numbers = [_together([found for pair in pairs if (found := pair.number(each.key))]) for each in newest.numbers]
    who = f"the last {len(alike)} runs"
    step = numbers[0].change
    count = min(pair.steps[0] for pair in pairs), newest.steps[1]
    outcome, sentence = newest.outcome, newest.verdict
    if step is not None and count[1] >= LEAST:
        outcome, sentence = _verdict(_Run(alike[0]), _Run(run), newest.differs, step)
        sentence += f", against {who}"
    return replace(newest, first=who, steps=count, numbers=numbers, outcome=outcome, verdict=sentence)


def _together(numbers: Sequence[Number]) -> Number:
    """Return one number of several runs as their middle, with an error that has their spread, and of the run itself."""
    newest = numbers[0]
    same = [each.first for each in numbers if each.first is not None]
    if len(same) < 2 or newest.second is None or newest.change is None:
        return newest
    values = np.array([each.value for each in same])
    spread = float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / len(values))
    error = max(spread, float(np.median([each.error for each in same])))
    first = Estimate(float(np.median(values)), error, len(values) - 1.0)
    # The freedom is that of the runs, also where these are closer to each other by chance than a run knows itself.
    both = first._replace(error=math.hypot(error, newest.second.error))
    return newest._replace(first=first, change=change(both, newest.second._replace(error=0.0)))
