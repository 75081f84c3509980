"""The numbers of a group, added up from those of its ranks. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from ddptop.agent.observer.model.ranks.rank import RankModel, rate_of
from ddptop.agent.text import clean
from ddptop.agent.wire import PHASES, Beat
from ddptop.agent.wire.steps.latencies import KINDS
from ddptop.agent.wire.steps.numbers import AMOUNTS
from ddptop.agent.wire.vocabulary.mesh import replica_of

_Times = tuple[float | None, ...]
"""Of one rank, in ms: a step, and the phases of it in the order of `PHASES`."""
WAIT = 1 + PHASES.index("wait")
"""Where the waiting for others stands among the times of a rank."""
_TOLD = attrgetter("wall_ns", *(f"{phase}_ns" for phase in PHASES))
_amounts = attrgetter(*AMOUNTS)


@dataclass(frozen=True, slots=True)
class Totals:
    """A group at one moment; see `wire.RunFrame` for what they mean."""

    step: int | None
    total_steps: int | None
    total_by: str | None
    step_ms: float | None
    phases_ms: dict[str, float] | None
    rates: Mapping[str, Any]
    """What is done in a second, by the names of its fields in a `RunFrame`; not while the group stands."""
    loss: float | None
    is_loss_unsure: bool
    collective: str
    """The kind of collective that has taken most time in most ranks."""
    slowest: int | None
    backend: str | None
    device: str | None
    note: str | None
    refused: int
    recorded_every: int
    """One step in so many is recorded by the ranks; where they do not agree, by those that record least."""
    steps_are: str
    times: Mapping[int, _Times]
    """Of each rank that has any, in ms: a step, and its phases in the order of `PHASES`."""


def add_up(models: Collection[RankModel], slowest_factor: float) -> Totals:
    """Return the numbers of the group that these ranks are; see `settings.Thresholds` for the factor."""
    beats = [model.beat for model in models if model.beat is not None]
    times, amounts = _measured(models)
    work = [(model.beat, times[model.rank][0]) for model in models if model.rank in times]
    total = max((beat for beat in beats if beat.total_steps), key=lambda beat: beat.total_steps or 0, default=None)
    logged = [each.log_total for model in models if model.is_outside and (each := model.looks.last) and each.log_total]
    losses = [model.loss for model in models if model.loss is not None]
    dominant = [model.dominant for model in models]
    return Totals(
        step=step_of(models),
        total_steps=max(logged, default=None) if total is None else total.total_steps,
        total_by=("its log" if logged else None) if total is None else total.total_by,
        step_ms=max((each[0] for each in times.values() if each[0] is not None), default=None),
        phases_ms=_mean_phases(times.values()),
        rates={
            **{f"{amount}_per_s": sum(each.values()) if each else None for amount, each in amounts.items()},
            "flops_per_s": _flops_per_s(work),
            "mfu": _mfu(work),
        },
        loss=sum(losses) / len(losses) if losses else None,
        is_loss_unsure=any(beat.is_loss_unsure for beat in beats),
        collective=max(KINDS, key=dominant.count),
        slowest=_slowest(times, slowest_factor),
        backend=next((beat.backend for beat in beats if beat.backend), None),
        device=next((beat.device for beat in beats if beat.device), None),
        note=next((beat.note for beat in beats if beat.note), None),
        refused=sum(beat.refused for beat in beats),
        recorded_every=max((beat.recorded_every for beat in beats), default=1),
        steps_are=next((clean(beat.steps_are, 60) for beat in beats if beat.steps_are), ""),
        times=times,
    )


def step_of(models: Iterable[RankModel]) -> int | None:
    """Return the step that every rank has completed, None where it is not known of each.

    Of ranks without an agent those count whose logs name one: nearly always rank 0 alone writes it.
    """
    steps = [step for model in models if (step := model.step) is not None or not model.is_outside]
    known = [step for step in steps if step is not None]
    return min(known) if known and len(known) == len(steps) else None


def _measured(models: Collection[RankModel]) -> tuple[dict[int, _Times], dict[str, dict[object, float]]]:
    """Return the times of each rank that has any, and of each of `AMOUNTS` so much a second where it is known.

    Samples on which several ranks work together count once: rates are by replica.
    """
    times: dict[int, _Times] = {}
    amounts: dict[str, dict[object, float]] = {amount: {} for amount in AMOUNTS}
    for model in models:
        told = model.told
        if model.brief and told is not None:
            # Most ranks of a large group are never drawn: their own means need not be worked out.
            times[model.rank] = tuple([None if span is None else span / 1e6 for span in _TOLD(told)])
            rates = [rate_of(amount, told.wall_ns) for amount in _amounts(told)]
        else:
            means = model.means
            rates = [means.others.get(f"{amount}_per_s") for amount in AMOUNTS]
            if means.step_ms is not None and means.phases_ms is not None:
                times[model.rank] = (means.step_ms, *map(means.phases_ms.get, PHASES))
        if rates.count(None) == len(rates):
            continue
        replica = replica_of(model.rank, None if model.beat is None else model.beat.coordinates)
        for rate, of_all in zip(rates, amounts.values(), strict=True):
            if rate is not None:
                of_all[replica] = max(rate, of_all.get(replica, 0.0))
    return times, amounts


def _flops_per_s(work: Iterable[tuple[Beat | None, float | None]]) -> float | None:
    """Return the operations a second of all ranks together, each with the ms of its step."""
    known = [beat.flops / step_ms * 1e3 for beat, step_ms in work if beat is not None and beat.flops and step_ms]
    return sum(known) if known else None


def _mfu(work: Iterable[tuple[Beat | None, float | None]]) -> float | None:
    known = [(beat, step_ms) for beat, step_ms in work if beat is not None and beat.peak and beat.flops and step_ms]
    done = _flops_per_s(known)
    return None if done is None else done / sum(beat.peak or 0.0 for beat, _ in known)


def _mean_phases(times: Collection[_Times]) -> dict[str, float] | None:
    """Return the mean of each phase that all ranks know."""
    if not times:
        return None
    phases = {}
    for phase, spans in zip(("step", *PHASES), zip(*times, strict=True), strict=True):
        known = [span for span in spans if span is not None]
        if phase != "step" and len(known) == len(spans):
            phases[phase] = sum(known) / len(known)
    return phases


def _slowest(times: Mapping[int, _Times], factor: float) -> int | None:
    """Return the rank with the largest time of its own, without waiting, if it is `factor` times the median."""
    own = {
        rank: step - wait
        for rank, each in times.items()
        if (step := each[0]) is not None and (wait := each[WAIT]) is not None
    }
    if len(own) < 2:
        return None
    slowest = max(own, key=own.__getitem__)
    others = [value for rank, value in own.items() if rank != slowest]
    return slowest if own[slowest] > factor * statistics.median(others) else None
