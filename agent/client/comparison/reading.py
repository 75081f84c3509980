"""The record of a run, alive or ended, read by the questions that every onlooker asks of its history."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from ddptop.agent import wire
from ddptop.agent.client.comparison.facts import facts_of
from ddptop.agent.client.comparison.measured import SOUND, Floats, Measured, Series
from ddptop.agent.client.frame import Frame
from ddptop.agent.client.history.answers import Answers
from ddptop.agent.client.history.columns import mean_of_ranks
from ddptop.agent.client.look import heard
from ddptop.agent.client.runs import Run
from ddptop.agent.client.watch import Watch
from ddptop.agent.run import ends
from ddptop.agent.text import plural
from ddptop.agent.wire.steps.numbers import RECORDED

WHOLE: Final = 4096
"""Newest steps that are read one by one, as far as the record has them."""
COARSE: Final = 512
"""Columns of a number over the whole run."""
_STALLS: Final = frozenset({"hang", "standing"})


def read(run: Run, who: str) -> Measured:
    """Return what the record of a run says of its steps.

    Raises:
        RunDirError: the run is gone, or its record cannot be read.
    """
    with Watch(run, who, looks_back=True) as watch:
        frame, record = heard([watch])[0], run.record()
        answers = Answers(watch, frame.world)
        last, whole = answers.last, min(WHOLE, answers.most)
        first = max(answers.first, last - whole + 1)
        found = {name: answers.columns(name, first, last, whole) for name in RECORDED} if last else {}
        steps, at, values = np.empty(0, np.int64), np.empty(0), dict[str, Floats]()
        if (step := found.get("step")) is not None:
            # A column of several steps is none that was recorded by itself.
            kept = np.isfinite(step.mean).any(axis=0) & (step.known.max(axis=0) <= 1)
            steps, at = step.steps[kept].astype(np.int64), np.fmax.reduce(step.at[:, kept], axis=0)
            values = {name: each.mean[:, kept] for name, each in found.items() if each.mean.shape == step.mean.shape}
        batch = math.nan
        if (samples := values.get("samples")) is not None and np.isfinite(made := samples * values["step"] / 1e3).any():
            batch = float(np.median(made[np.isfinite(made)]))
        wait, transfer, sent = _transfers(answers, frame.world)
        curves, broken_at = _curves(answers)
        happened = watch.events()
        trouble, unheard = _deaths(run, frame, happened)
        return Measured(
            name=run.name,
            facts=facts_of(record, frame, batch, sent),
            steps=steps,
            at=at,
            values=values,
            batch=batch * frame.world,
            wait=wait,
            transfer=transfer,
            restarts=tuple(each.step for each in frame.restarts),
            marks=tuple(each.at_ns / 1e9 for each in happened if isinstance(each, wire.Event) and each.action),
            curves=curves,
            begun_at=record.created_at_ns / 1e9,
            stalled_s=sum(
                max(0.0, (frame.at if each.until_at_ns is None else each.until_at_ns / 1e9) - each.since_at_ns / 1e9)
                for each in happened
                if isinstance(each, wire.Verdict) and each.kind in _STALLS
            ),
            newest=last,
            state=frame.state,
            trouble=trouble,
            unheard=unheard,
            broken_at=broken_at,
        )


def _deaths(run: Run, frame: Frame, happened: Iterable[wire.Event | wire.Verdict]) -> tuple[str, tuple[int, ...]]:
    """Return what has died, also of a run that counts as finished, as the end of a sentence; and the ranks of whose end
    nothing is recorded.
    """
    if frame.state not in SOUND:
        return f": {frame.cause}" if frame.cause else "", ()
    if frame.restarts or frame.generation:
        after = f" after step {frame.restarts[-1].step:,}" if frame.restarts else ""
        return f", and was restarted{after}", ()
    deaths, died, unheard = ends.read(run.directory.path, frame.generation), dict[int, str](), []
    members = run.directory.everyone()
    for each in frame.ranks:
        member, death = members.get(each.rank), deaths.get(each.rank)
        code = None if member is None or member.ended is None else member.ended.exit_code
        if status := code or (death and death.status):
            died[each.rank] = f"ended with exit code {status}" if status > 0 else f"was ended by signal {-status}"
        elif each.state in ("failed", "killed"):
            died[each.rank] = each.state
        elif each.state == "lost" and (death is None or death.status is None):
            unheard.append(each.rank)
    if died:
        rank, how = min(died.items())
        more = f", as did {plural(len(died) - 1, 'other rank')}" if len(died) > 1 else ""
        return f", but rank {rank} {how}{more}", ()
    late = (each.text for each in happened if isinstance(each, wire.Event) and each.text.endswith(ends.LATE))
    return next((f": {text}" for text in late), ""), tuple(unheard)


def _curves(answers: Answers) -> tuple[dict[str, Series], int | None]:
    """Return the means of all numbers over the ranks, over the whole run, of those that are known, and by which step a
    rank's loss was not finite.
    """
    first, last = answers.first, answers.last
    found, broken_at = {}, None
    for metric in RECORDED if last >= first else ():
        columns = answers.columns(metric, first, last, min(COARSE, last - first + 1))
        if metric == "loss" and (broken := np.isinf(columns.mean).any(axis=0)).any():
            broken_at = int(columns.steps[broken][0])
        mean, at = mean_of_ranks(columns.mean), np.fmax.reduce(columns.at, axis=0)
        if (known := np.isfinite(mean)).any():
            found[metric] = Series(columns.steps, at, mean, mean, mean, np.ones(len(mean))).part(known)
    return found, broken_at


def _transfers(answers: Answers, world: int) -> tuple[Floats, Floats, float]:
    """Return of the newest steps the mean over ranks of the ms that their collectives waited for the last rank, and of
    those after, and the bytes of a step's collectives.
    """
    by_step: dict[int, list[tuple[float, float, int]]] = {}
    # As many as an answer has room for: of a large group a few ranks.
    answer = answers.ask(wire.WholeSteps(0, tuple(range(min(world, wire.EACH_RECORD)))))
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
