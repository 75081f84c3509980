"""The numbers of a group, added up from those of its ranks. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ddptop.agent.wire import PHASES
from ddptop.tui.mesh import replica_of
from ddptop.tui.rankmodel import Means, RankModel
from ddptop.tui.units import clean


@dataclass(frozen=True, slots=True)
class Totals:
    """A group at one moment; see `frame.Frame` for what they mean."""

    step: int | None
    total_steps: int | None
    step_ms: float | None
    phases_ms: dict[str, float] | None
    samples_per_s: float | None
    loss: float | None
    slowest: int | None
    backend: str | None
    device: str | None
    note: str | None
    refused: int


def add_up(models: Collection[RankModel], slowest_factor: float) -> Totals:
    """Return the numbers of the group that these ranks are; see `settings.Thresholds` for the factor."""
    beats = [model.beat for model in models if model.beat is not None]
    steps = [model.step for model in models]
    known_steps = [step for step in steps if step is not None]
    means = {model.rank: model.means for model in models}
    times = {rank: each.step_ms for rank, each in means.items() if each.step_ms is not None}
    phases = {rank: each.phases_ms for rank, each in means.items() if each.phases_ms is not None}
    losses = [model.loss for model in models if model.loss is not None]
    notes = (beat.note for beat in beats if beat.note)
    return Totals(
        step=min(known_steps) if known_steps and len(known_steps) == len(steps) else None,
        total_steps=max((beat.total_steps for beat in beats if beat.total_steps is not None), default=None),
        step_ms=max(times.values(), default=None),
        phases_ms=_mean_phases(list(phases.values())),
        samples_per_s=_rate(models, means),
        loss=sum(losses) / len(losses) if losses else None,
        slowest=_slowest(times, phases, slowest_factor),
        backend=next((beat.backend for beat in beats if beat.backend), None),
        device=next((beat.device for beat in beats if beat.device), None),
        note=next((clean(note, 200) for note in notes), None),
        refused=sum(beat.refused for beat in beats),
    )


def _mean_phases(known: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    if not known:
        return None
    common = [phase for phase in PHASES if sum(phase in phases for phases in known) == len(known)]
    return {phase: sum(phases[phase] for phases in known) / len(known) for phase in common}


def _rate(models: Collection[RankModel], means: Mapping[int, Means]) -> float | None:
    """Return the samples a second of the group; those on which several ranks work together count once."""
    rates: dict[object, float] = {}
    for model in models:
        rate = means[model.rank].samples_per_s
        if rate is not None:
            replica = replica_of(model.rank, None if model.beat is None else model.beat.coordinates)
            rates[replica] = max(rate, rates.get(replica, 0.0))
    return sum(rates.values()) if rates else None


def _slowest(times: Mapping[int, float], phases: Mapping[int, Mapping[str, float]], factor: float) -> int | None:
    """Return the rank with the largest time of its own, without waiting, if it is `factor` times the median."""
    own = {rank: times[rank] - found["wait"] for rank, found in phases.items() if "wait" in found and rank in times}
    if len(own) < 2:
        return None
    slowest = max(own, key=own.__getitem__)
    others = [value for rank, value in own.items() if rank != slowest]
    return slowest if own[slowest] > factor * statistics.median(others) else None
