"""Makes frames of what a store knows, and changes nothing of it.

Everything on the screen, in `status --json` and in the plain output comes from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import fields
from itertools import islice
from operator import attrgetter, is_
from typing import Any, Final

from msgspec.structs import replace

from ddptop.agent.observer.judge import standstill
from ddptop.agent.observer.judge.crowding import placed
from ddptop.agent.observer.model.ranks.group import WAIT, Totals
from ddptop.agent.observer.model.ranks.looks import mean_of
from ddptop.agent.observer.model.ranks.rank import RankModel, rate_of
from ddptop.agent.observer.model.ranks.recent import Means
from ddptop.agent.observer.model.situation import Situation, Supervision
from ddptop.agent.observer.model.store import Store
from ddptop.agent.run import states
from ddptop.agent.text import clean, span
from ddptop.agent.wire import HELD, Beat
from ddptop.agent.wire.frames import (
    ENDED,
    NO_HOSTS,
    OUTSIDE,
    UNREPORTED,
    AllReduce,
    Calls,
    HostFrames,
    RankFrame,
    RunFrame,
)
from ddptop.agent.wire.hosts import HostFrame
from ddptop.agent.wire.steps.latencies import ALL_REDUCE
from ddptop.agent.wire.steps.numbers import AMOUNTS

_MOVING: Final = frozenset({"running", "pausing"})
"""States in which steps are completed."""
_STANDING: Final = frozenset({"stalled", "silent", "frozen"})
"""States in which they should be, and are not."""
_OF_BEAT: Final = tuple(
    name
    for name in RankFrame.__struct_fields__
    if name in Beat.__struct_fields__ and name not in ("rank", "state", "activity", "step", "coordinates")
)
"""Fields that a heartbeat and a frame have alike; these five are made of more than a heartbeat."""
_OF_TOTALS: Final = tuple(
    field.name
    for field in fields(Totals)
    if field.name in RunFrame.__struct_fields__ and field.name not in ("backend", "device", "refused")
)
"""The same of a group and its frame; of these three more is known than its ranks say."""
_of_beat: Final = attrgetter(*_OF_BEAT)
_NONE_IF_STILL: Final = dict.fromkeys((*(f"{amount}_per_s" for amount in AMOUNTS), "flops_per_s", "mfu"))
"""What a rank does in a second, while it makes no steps."""
JOINED: Final = "joined"
"""How a rank is known into which the agent has come while it ran."""
AXES: Final = 8
"""Names of coordinates that are shown."""
_NO_BEAT: Final = Beat(0, 0, "", "", 0, None, 0)
"""Of a rank that was not heard: nothing is known."""
_UNSEEN: Final = Supervision("starting")
"""Of a run that nobody has looked after yet."""


class Framer:
    """Makes the frames of one store."""

    def __init__(self, store: Store, logs: Mapping[int, str] | None = None) -> None:
        """Make frames of a store; `logs` has the file of each rank's output, where it goes to a file."""
        self._store = store
        self._logs = logs or {}
        self.hosts = NO_HOSTS
        """The hosts of the frame that was made last."""
        self._timed: tuple[object, object] = (None, None)
        """The hosts, and the times of ranks, that the hosts of the last frame were made of."""

    def frame(self) -> RunFrame:
        """Return the frame of the moment that the store has come to; twice in a row, equal ones."""
        store, situation = self._store, self._store.situation
        state, totals = situation.state, situation.totals
        self.hosts = self._timed_hosts(situation)
        run, live, changes, models = store.run, store.liveness, store.changes, store.ranks
        supervision = store.supervision or _UNSEEN
        step, total, step_ms = totals.step, totals.total_steps, totals.step_ms
        beats = [model.beat for model in models.values() if model.beat is not None]
        stands = state in _STANDING or (state in _MOVING and _all_stand(models.values(), situation.at, step_ms))
        moving = state in _MOVING and not stands
        cause, cause_rank = store.cause
        seen = self._seen(situation.at) if run.outside else {}
        return RunFrame(
            **{name: getattr(totals, name) for name in _OF_TOTALS},
            **(totals.rates if moving else {}),
            run=run.run,
            state=state,
            program=clean(run.program, 200),
            world=run.world,
            at=situation.at,
            backend=run.backend or totals.backend,
            device=run.device or totals.device,
            placement=self._placement(),
            injected=run.injected or None,
            started_at=run.created_at_ns / 1e9,
            ended_at=self._ended_at(state),
            held_since=self._held(state, beats),
            eta_s=(total - step) * step_ms / 1e3 if moving and total and step is not None and step_ms else None,
            pid=run.torchrun.pid if run.torchrun is not None else None,
            supervised=state not in ENDED and (live.supervised if live is not None else True),
            orphaned=live.orphaned if live is not None else False,
            launched=run.launched,
            exit_code=run.exit_code,
            cause=cause,
            cause_rank=cause_rank,
            one_host=None if self.hosts.several else self._only_host(),
            one_device=_only({beat.device for beat in beats}),
            events=tuple(changes.events),
            verdicts=changes.verdicts,
            missing_steps=0 if state in ENDED or seen.get("known_by") == OUTSIDE else changes.missing_steps,
            named_from_ms=changes.named_from_ms(step_ms) if moving else None,
            logged=tuple(sorted({name for model in models.values() for name in model.metrics})),
            refused=store.refused + totals.refused + supervision.refused,
            outstanding=sum(
                model.beat.outstanding
                for rank, model in models.items()
                if model.beat is not None and situation.ranks[rank] not in ENDED
            ),
            checkpoints=any(beat.checkpoints for beat in beats),
            timeout_s=min((beat.timeout_s for beat in beats if beat.timeout_s is not None), default=None),
            ending=supervision.ending if state not in ENDED else "",
            ends_at=supervision.ends_at if state not in ENDED else None,
            awaits=supervision.awaits if state not in ENDED else "",
            action=supervision.action if state not in ENDED else "",
            waiting=supervision.waiting if state not in ENDED else "",
            restarts=store.generations.restarts,
            generation=store.generations.newest,
            max_restarts=run.max_restarts,
            run_id=run.run_id,
            grace_s=run.grace_s,
            placed=any(beat.coordinates for beat in beats),
            stands=stands,
            goes_on=next(filter(None, (model.goes_on for model in models.values())), "") if stands else "",
            on_hosts=tuple(self.hosts),
            unlinked=store.unlinked,
            unlinked_why=store.hosts.why,
            **seen,
        )

    def _seen(self, now: float) -> dict[str, Any]:
        """Return how a run that nobody prepared is known, and its looks."""
        outside = [model for model in self._store.ranks.values() if model.is_outside or model.member is None]
        seen = [found for model in outside if (found := model.looks.summary(now)) is not None]
        return {
            "known_by": OUTSIDE if outside else JOINED,
            "by_looks": mean_of(seen),
            "from_log": any(model.is_outside and model.step is not None for model in outside),
            "named_from_share": None if (judge := self._store.judge) is None else judge.named_from_share,
        }

    def _timed_hosts(self, situation: Situation) -> HostFrames:
        """Return the hosts with the times of their ranks, which are those of before while nothing new is known."""
        known = self._store.hosts.shown, situation.totals.times
        if not all(map(is_, known, self._timed)):
            self._timed = known
            self.hosts = known[0].with_times(known[1], WAIT) if known[0] else known[0]
        return self.hosts

    def rank(self, rank: int, *, short: bool = False) -> RankFrame:
        """Return the frame of a rank; a `short` one is without its earlier losses."""
        store, situation = self._store, self._store.situation
        model, now, state = store.ranks[rank], situation.at, situation.ranks[rank]
        member, means, host = model.member, model.means, self.hosts.of(rank)
        is_elsewhere = member is None and states.has_other_hosts(store.run)
        kind = situation.totals.collective
        reduces = model.latencies_ms(ALL_REDUCE)
        exchange = store.alignment.means_ms(rank) or ()
        age = model.age(now)
        # Where other ranks are held it is to make no steps.
        may_stand = state in _MOVING and situation.state != "held"
        stands = state in _STANDING or (may_stand and standstill.stands(age, means.step_ms))
        moving = state in _MOVING and not stands
        frame = model.frame or _own_frame(model, means, short=short)
        if not moving:
            frame = replace(frame, **_NONE_IF_STILL)
        return replace(
            frame,
            state=state,
            activity=_activity(model, now, state, host, placed=host is not None or is_elsewhere),
            pid=member.process.pid if member is not None else None,
            host=host.host if host is not None else None if member is None else member.host,
            step=model.step,
            step_age_s=age,
            stands=stands,
            heard_age_s=model.heard_age(now),
            losses=() if short else frame.losses,
            allreduce_ms=AllReduce(*reduces, *exchange),
            collective_ms=Calls(kind, *(reduces if kind == ALL_REDUCE else model.latencies_ms(kind))),
            log=self._log_of(model, is_elsewhere=is_elsewhere),
            far=model.far,
            unkept=member is not None and member.log is None,
            ended=states.describe_rank_end(None if member is None else member.ended, alive=model.alive),
            **(_seen(model, now) if store.run.outside and model.frame is None else {}),
        )

    def _log_of(self, model: RankModel, *, is_elsewhere: bool) -> str | None:
        """Return the file that a rank on this host writes to."""
        if model.far or is_elsewhere:
            return None
        return self._logs.get(model.rank) if model.member is None else model.member.log

    def _ended_at(self, state: str) -> float | None:
        """Return when the run has ended; of one whose end could not be written down, when its last rank has."""
        if state not in ENDED:
            return None
        members = [model.member for model in self._store.ranks.values()]
        told = [each.ended.at_ns for each in members if each is not None and each.ended is not None]
        at_ns = self._store.run.ended_at_ns or max(told, default=None)
        return None if at_ns is None else at_ns / 1e9

    def _placement(self) -> str:
        # Ranks that train on a device of their own seldom use their threads.
        told = (
            (model.member.host if model.member is not None else "", model.beat.threads)
            for model in self._store.ranks.values()
            if model.beat is not None and model.beat.threads is not None and model.beat.device in (None, "cpu")
        )
        return placed(self._store.run.placement, told)

    def _only_host(self) -> str | None:
        return _only({model.member.host for model in self._store.ranks.values() if model.member is not None})

    def _held(self, state: str, beats: list[Beat]) -> float | None:
        """Return since when all are paused, or one is held for some work: by the ranks, else since it was seen here."""
        if state == "frozen":
            return None if self._store.liveness is None else self._store.liveness.frozen_at
        if state not in HELD:
            return None
        told = [beat.held_at_ns for beat in beats if beat.held_at_ns is not None]
        last = max if state == "paused" else min
        return last(told) / 1e9 if told else self._store.changes.held_since


def _seen(model: RankModel, now: float) -> dict[str, Any]:
    """Return how a rank that nobody prepared is known, and the looks at it."""
    if not model.is_outside:
        return {"known_by": JOINED if model.member is not None else OUTSIDE}
    from_log = model.step is not None or model.loss is not None
    return {"known_by": OUTSIDE, "by_looks": model.looks.summary(now), "from_log": from_log}


def _only(values: Set[str | None]) -> str | None:
    return next(iter(values)) if len(values) == 1 else None


def _own_frame(model: RankModel, means: Means, *, short: bool) -> RankFrame:
    """Return what is known of a rank by its own messages, in a frame that lacks its state."""
    beat = model.beat or _NO_BEAT
    flops_per_s = rate_of(beat.flops, None if means.step_ms is None else means.step_ms * 1e6)
    return RankFrame(
        **dict(zip(_OF_BEAT, _of_beat(beat))),  # noqa: B905
        **means.others,
        rank=model.rank,
        state="",
        activity="",
        loss=model.loss,
        losses=() if short else tuple(model.losses),
        step_ms=means.step_ms,
        phases_ms=means.phases_ms,
        device_ms=means.device_ms,
        flops_per_s=flops_per_s,
        mfu=flops_per_s / beat.peak if flops_per_s is not None and beat.peak else None,
        memory_kind="device" if beat.device is not None and not beat.device.startswith("cpu") else "process",
        metrics=dict(model.metrics),
        missed=model.missed,
        coordinates=None if beat.coordinates is None else dict(islice(beat.coordinates.items(), AXES)),
        python_version=None if model.hello is None else model.hello.python_version,
    )


def _activity(model: RankModel, now: float, state: str, host: HostFrame | None, *, placed: bool) -> str:
    """Return what a rank does, or what its host tells of it."""
    if placed and state == "silent" and host is not None and host.is_unheard:
        return host.told
    if placed and not model.is_known and state in ("starting", "silent"):
        return UNREPORTED if host is None else f"starting on {host.host}"
    if state == "running" and model.beat is not None:
        # Of a large group nearly every rank, every second: nothing else needs to be known of it.
        return clean(model.beat.activity, 60)
    if state == "held" and model.beat is not None and model.beat.held_at_ns is not None:
        held_s = now - model.beat.held_at_ns / 1e9 + (model.lag_s or 0.0)
        return f"{clean(model.beat.activity, 40)}, {span(max(0.0, held_s))}"
    if model.frame is not None and state == model.frame.state:
        return model.frame.activity
    return states.describe(model.evidence(now), state)


def _all_stand(models: Iterable[RankModel], now: float, step_ms: float | None) -> bool:
    """Say whether no rank has completed a step for long; those whose steps are not known do not count."""
    stepped = False
    for model in models:
        age = model.age(now)
        if age is not None and not standstill.stands(age, step_ms):
            # Nearly always this is the first of them, however many there are.
            return False
        stepped = stepped or age is not None
    return stepped
