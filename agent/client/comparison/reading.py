"""The record of a run, alive or ended, read by the questions that every onlooker asks of its history."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from ddptop.agent import wire
from ddptop.agent.client.comparison.facts import facts_of
from ddptop.agent.client.comparison.measured import Curve, Lost, Measured
from ddptop.agent.client.history.asked import Asked, Sight
from ddptop.agent.client.history.columns import Columns
from ddptop.agent.client.history.history import History
from ddptop.agent.client.history.stretches import MOST_CELLS, stretch_of
from ddptop.agent.client.look import heard
from ddptop.agent.client.runs import Run, RunDirError
from ddptop.agent.client.watch import Watch
from ddptop.agent.record.history.columns import fold, stride_of
from ddptop.agent.record.history.question import Question
from ddptop.agent.run import ends
from ddptop.agent.wire.steps.numbers import RECORDED

WHOLE: Final = 4096
"""Newest steps that are read one by one, as far as the record has them."""
COARSE: Final = 512
"""Columns of a number over the whole run."""
_ANSWER_S: Final = 30.0
"""Seconds in which an observer has to answer all questions."""
_POLL_S: Final = 0.005
_STALLS: Final = frozenset({"hang", "standing"})


class _Once(Sight):
    """One question, asked until it is answered."""

    def __init__(self, asked: Asked, query: Question) -> None:
        self._asked, self._query = asked, query
        self.answer: list[wire.HistoryAnswer] = []
        self.see()

    def see(self) -> None:
        """Keep the question in sight."""
        self.read_at = self._asked.clock()

    def question(self, now: float) -> Question | None:
        return None if self.answered else self._query

    def take(self, query: Question, answer: list[wire.HistoryAnswer]) -> None:
        self.answer = answer

    def forget(self) -> None:
        self.answered = False


class _Asking:
    """Questions to one run, each answered before the next is asked."""

    def __init__(self, watch: Watch, history: History) -> None:
        self._watch, self._asked = watch, history.asked
        self._until = time.monotonic() + _ANSWER_S

    def ask(self, query: Question) -> list[wire.HistoryAnswer]:
        """Return the whole answer.

        Raises:
            RunDirError: there is none, or it says that the record cannot be read.
        """
        name = self._watch.run.name
        sight = self._asked.look(query, lambda: _Once(self._asked, query))
        while not sight.answered:
            sight.see()
            self._watch.poll()
            self._watch.frame()
            if sight.answered:
                break
            if self._asked.is_answered():
                raise RunDirError(f"run {name}: nothing of its steps is recorded")
            if time.monotonic() > self._until:
                raise RunDirError(f"run {name}: its history was not answered in {_ANSWER_S:.0f} s; try again")
            time.sleep(_POLL_S)
        reply = sight.answer[-1]
        if isinstance(reply, wire.Reply) and not reply.done:
            raise RunDirError(f"run {name}: {reply.text}")
        return sight.answer

    def columns(self, metric: str, world: int, first: int, last: int, most: int) -> Columns:
        """Return a number of all ranks over some steps."""
        query = wire.History(0, metric, None, first, last, "step", most)
        stretch = stretch_of(query, range(world), self.ask(query))
        if stretch is None:
            nothing = np.empty((world, 0))
            return Columns(np.empty(0), nothing, nothing, nothing, nothing, nothing)
        whose, series = stretch.series(first, last, last)
        return fold(range(world), whose, series, first, last, max(stretch.width, stride_of(first, last, most)))


def read(run: Run, who: str) -> Measured:
    """Return what the record of a run says of its steps.

    Raises:
        RunDirError: the run is gone, or its record cannot be read.
    """
    with Watch(run, who, looks_back=True) as watch:
        frame = heard([watch])[0]
        history = watch.history
        assert history is not None
        asking = _Asking(watch, history)
        (extent, *_) = asking.ask(wire.History(0, ranks=()))
        assert isinstance(extent, wire.Extent)
        last, world = extent.newest, frame.world
        found: dict[str, Columns] = {}
        # More would not fit into an answer.
        whole = max(1, min(WHOLE, MOST_CELLS // 4 // world))
        first = max(1, extent.first, last - whole + 1)
        if last:
            found = {name: asking.columns(name, world, first, last, whole) for name in RECORDED}
        step = found.get("step")
        kept = np.zeros(0, bool) if step is None else np.isfinite(step.mean).any(axis=0) & (step.known.max(axis=0) <= 1)
        values = {name: columns.mean[:, kept] for name, columns in found.items() if columns.mean.shape[1] == len(kept)}
        waited, sent, sizes = _transfers(asking, frame.world)
        curves, broken_at = _curves(asking, world, max(1, extent.first), last)
        died, unheard = _died(run, frame.generation, frame.ranks)
        said = [each for each in watch.events() if isinstance(each, wire.Event)]
        return Measured(
            name=run.name,
            facts=facts_of(run.record(), frame, values, sizes),
            steps=step.steps[kept].astype(np.int64) if step is not None else np.empty(0, np.int64),
            at=np.fmax.reduce(step.at[:, kept], axis=0) if step is not None else np.empty(0),
            values=values,
            wait=waited,
            transfer=sent,
            restarts=tuple(each.step for each in frame.restarts),
            marks=tuple(each.at_ns / 1e9 for each in said if each.action),
            curves=curves,
            begun_at=watch.run.record().created_at_ns / 1e9,
            lost=_lost(watch, frame.at),
            newest=last,
            state=frame.state,
            generation=frame.generation,
            died=died,
            unheard=unheard,
            late=next((each.text for each in said if each.text.endswith(ends.LATE)), ""),
            broken_at=broken_at,
        )


def _died(run: Run, generation: int, ranks: Sequence[wire.RankFrame]) -> tuple[dict[int, str], tuple[int, ...]]:
    """Return the ranks that have died, and how, by all that is recorded of them; and those of whose end nothing is."""
    deaths, died, unheard = ends.read(run.directory.path, generation), dict[int, str](), []
    members = run.directory.everyone()
    for each in ranks:
        member, death = members.get(each.rank), deaths.get(each.rank)
        code = None if member is None or member.ended is None else member.ended.exit_code
        if status := code or (death and death.status):
            died[each.rank] = f"ended with exit code {status}" if status > 0 else f"was ended by signal {-status}"
        elif each.state in ("failed", "killed"):
            died[each.rank] = each.state
        elif each.state == "lost" and (death is None or death.status is None):
            unheard.append(each.rank)
    return died, tuple(unheard)


def _curves(asking: _Asking, world: int, first: int, last: int) -> tuple[dict[str, Curve], int | None]:
    """Return the means of all numbers over the ranks, over the whole run, of those that are known, and by which step a
    rank's loss was not finite.
    """
    found, broken_at = {}, None
    for metric in RECORDED if last >= first else ():
        columns = asking.columns(metric, world, first, last, min(COARSE, last - first + 1))
        if metric == "loss" and (broken := np.isinf(columns.mean).any(axis=0)).any():
            broken_at = int(columns.steps[broken][0])
        finite = np.isfinite(columns.mean)
        known = finite.sum(axis=0)
        if (where := known > 0).any():
            mean = np.where(finite, columns.mean, 0.0).sum(axis=0)[where] / known[where]
            found[metric] = Curve(columns.steps[where], np.fmax.reduce(columns.at[:, where], axis=0), mean)
    return found, broken_at


def _transfers(asking: _Asking, world: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return of the newest steps the mean over ranks of the ms that their collectives waited for the last rank, and of
    those after, and the bytes of a step's collectives.
    """
    by_step: dict[int, list[tuple[float, float, int]]] = {}
    # As many as an answer has room for: of a large group a few ranks.
    answer = asking.ask(wire.WholeSteps(0, tuple(range(min(world, wire.EACH_RECORD)))))
    for part in answer:
        for each in part.steps if isinstance(part, wire.AlignedSteps) else ():
            waited = sent = 0
            for call, split in zip(each.step.collectives, each.splits, strict=False):
                if split is not None and call.duration_ns is not None:
                    begun = max(split.begun_ns, call.entered_ns)
                    waited += begun - call.entered_ns
                    sent += max(0, call.entered_ns + call.duration_ns - begun)
            split_all = bool(each.splits) and None not in each.splits
            size = sum(call.bytes for call in each.step.collectives)
            times = (waited / 1e6, sent / 1e6) if split_all else (math.nan, math.nan)
            by_step.setdefault(each.step.step, []).append((*times, size))
    if not by_step:
        return np.empty(0), np.empty(0), math.nan
    means = np.array([np.mean(rows, axis=0) for _, rows in sorted(by_step.items())])
    known = means[np.isfinite(means[:, 0])]
    return known[:, 0], known[:, 1], float(np.median(means[:, 2]))


def _lost(watch: Watch, now: float) -> Lost:
    """Return the time that the run has lost, as its verdicts have it; pauses and restarts are in its steps."""
    stalls = [each for each in watch.events() if isinstance(each, wire.Verdict) and each.kind in _STALLS]
    spans = [(each.since_at_ns / 1e9, now if each.until_at_ns is None else each.until_at_ns / 1e9) for each in stalls]
    return Lost(sum(max(0.0, until - since) for since, until in spans))


def several(runs: Sequence[Run], who: str) -> list[Measured]:
    """Return what the records of some runs say, without those that are gone or cannot be read."""
    found = []
    for run in runs:
        try:
            found.append(read(run, who))
        except RunDirError:
            continue
    return found
