"""What the observer knows of one rank; changed by the store alone."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from operator import attrgetter

from msgspec.structs import replace

from ddptop.agent.observer.judge.standstill import is_stalled
from ddptop.agent.observer.model.ranks.looks import RecentLooks
from ddptop.agent.observer.model.ranks.recent import OTHERS, SPANS, Latencies, Means, RecentSteps, means_of
from ddptop.agent.run import identity, states
from ddptop.agent.run.identity import Row
from ddptop.agent.run.rundir import Member
from ddptop.agent.run.switches.thresholds import Thresholds
from ddptop.agent.text import clean, plural
from ddptop.agent.wire import HELD, Beat, Hello, RankFrame, Sampled, Step, Summary
from ddptop.agent.wire.steps.latencies import ALL_REDUCE, KINDS, latencies_of
from ddptop.agent.wire.steps.numbers import AMOUNTS

DEFAULT = Thresholds()
LOSSES = 240
"""Losses held for the small history in a panel."""
METRICS = 64
"""Names a script may log before further ones are left out."""
_USUAL = frozenset({"running", "sleeping", "disk-sleep", "idle"})
"""Statuses of a process that may train."""
_spans = attrgetter(*(f"{span}_ns" for span in SPANS))
DENIED_NS = 2_000_000_000
"""So much later than the end of its script a rank must say that it goes on, to be believed."""


class RankModel:
    """One rank: its identity, its last beat, its records in order, what is missing of them."""

    def __init__(
        self,
        rank: int,
        thresholds: Thresholds = DEFAULT,
    ) -> None:
        self.rank = rank
        self._thresholds = thresholds
        self.hello: Hello | None = None
        self.beat: Beat | None = None
        self.member: Member | None = None
        self.alive: bool | None = None
        """True while its process runs; None before anybody looked, and where nobody here can."""
        self.far = False
        """It runs on another host."""
        self.lag_s: float | None = None
        """Seconds by which the clock of its host is ahead of the one here; None where that is not known."""
        self.frame: RankFrame | None = None
        """Of a rank on another host, how the observer there shows it, once that is known."""
        self._framed_at = 0.0
        """When that came."""
        self.heard_at: float | None = None
        """When anything came from it last, or was recorded of it."""
        self.met = False
        """It was heard itself, and is not only known from a record."""
        self.listened_at: float | None = None
        """Since when somebody listens to it."""
        self._looked_at: float | None = None
        """When its process was looked at last."""
        self._row: Row | None = None
        """How it was then."""
        self._cpu_percent: float | None = None
        """Its share of a core from one look to the next."""
        self._stopped_at: float | None = None
        """When it was last seen stopped by a signal."""
        self.missed = 0
        self.metrics: dict[str, float] = {}
        self.loss: float | None = None
        self.told: Summary | None = None
        """Its last summary."""
        self.brief = False
        """Its records do not come: summaries are all there is of its steps."""
        self._seq = 0
        self._recent = RecentSteps()
        self.looks = RecentLooks()
        """Those from outside, where no agent is in it."""
        self.losses: deque[float | None] = deque(maxlen=LOSSES)
        self._latencies = {kind: Latencies() for kind in KINDS}
        self._took: Counter[str] = Counter()
        self._means: Means | None = None
        self._superseded = False
        """Another process takes its place: its records tell nothing of that one."""
        self._earlier_steps = 0
        """Steps of the generations before, which the curve counts on from."""

    def successor(self, earlier_steps: int) -> RankModel:
        """Return the model of the process that has taken this one's place, which counts on from there."""
        model = RankModel(self.rank, self._thresholds)
        model.member, model.alive, model.listened_at = self.member, self.alive, self.listened_at
        model._earlier_steps = earlier_steps
        model.brief = self.brief
        model.far, model.lag_s = self.far, self.lag_s
        return model

    @property
    def is_known(self) -> bool:
        """True once it has left a record, or was heard."""
        return self.member is not None or self.hello is not None or self.beat is not None

    @property
    def last_step(self) -> int:
        """The last step on the curve."""
        return self._earlier_steps + self._last_told

    def take(self, steps: Iterable[Step], *, recorded: bool = False) -> list[Step]:
        """Take in records in order, count those between them, and return the new ones.

        What was before the first of all is not missed; nor is what a recording, which loses its oldest, does not have.
        """
        new = []
        for step in steps:
            if step.seq > self._seq:
                if self._seq and not recorded:
                    self.missed += step.seq - self._seq - 1
                self._seq = step.seq
                if self.frame is None:
                    self._append(step)
                new.append(step)
        return new

    def take_frame(self, frame: RankFrame, now: float) -> None:
        """Take in how the observer of its host shows it; what its steps were like is known from that alone."""
        before = self.frame
        if not frame.losses and before is not None and before.pid == frame.pid:
            # The row of each second is without those of before.
            frame = replace(frame, losses=before.losses)
        self.frame, self._framed_at, self.loss = frame, now, frame.loss
        self.missed = frame.missed
        self._note_metrics(frame.metrics)
        if frame.heard_age_s is not None:
            self.heard_at = max(self.heard_at or 0.0, now - frame.heard_age_s)

    def take_sampled(self, message: Sampled) -> None:
        """Take in looks from outside, and what the log says."""
        before = self.looks.last
        self.looks.take(message)
        if self.is_outside and (before is None or message.log_at_ns != before.log_at_ns):
            self._note_loss(message.log_step or 0, message.log_loss)

    @property
    def is_outside(self) -> bool:
        """True where nothing is known of it but what looks from outside and its log show."""
        return self.looks.last is not None if self.member is None else not self.member.by_agent

    def take_summary(self, summary: Summary) -> None:
        """Take in what its steps were like, once."""
        if self.frame is not None:
            return
        before = self.told
        if before is not None and summary.number <= before.number:
            return
        self.told, self._means = summary, None
        if before is not None:
            self.missed += summary.number - before.number - 1
        if self.brief:
            self._note_loss(summary.step, summary.loss)
        elif self.loss is None:
            # Its records may still be asked for, while a list of runs shows this already.
            self.loss = summary.loss
        self._note_metrics(summary.metrics)

    def watch(self, watched: bool) -> None:
        """Expect its records from the first one on, or let go of those that there are."""
        if self.brief != watched:
            return
        self.brief = not watched
        self._recent.clear()
        for latencies in self._latencies.values():
            latencies.clear()
        self._took.clear()
        self._means = None
        if watched:
            self._seq = 0
            self.losses.clear()

    def _append(self, step: Step) -> None:
        self._recent.append(step)
        self._note_loss(step.step, step.loss)
        for kind, took in latencies_of(step):
            self._latencies[kind].extend(took)
            self._took[kind] += sum(took)
        self._note_metrics(step.metrics)
        self._means = None

    def _note_loss(self, step: int, loss: float | None) -> None:
        self.losses.append(loss)
        if loss is not None:
            self.loss = loss

    def _note_metrics(self, metrics: Mapping[str, float]) -> None:
        if metrics.keys() <= self.metrics.keys():
            # Nearly always, and for every step.
            self.metrics.update(metrics)
            return
        for name, value in metrics.items():
            if name in self.metrics or len(self.metrics) < METRICS:
                self.metrics[name] = value

    def settle(self) -> None:
        """Work out the means of the records that have come; once for each batch of them."""
        if self._means is None:
            self._means = self.means

    @property
    def means(self) -> Means:
        """The means of its recent steps."""
        if self.frame is not None:
            return _of_frame(self.frame)
        if self._means is not None:
            return self._means
        told = self._newer_summary
        return self._recent.means() if told is None else _of_summary(told)

    @property
    def _newer_summary(self) -> Summary | None:
        """The last summary, where it tells of steps of which there are no records."""
        return self.told if self.told is not None and self.told.seq > self._seq else None

    @property
    def dominant(self) -> str | None:
        """The kind of collective that has taken most time; None where its records have none."""
        if self.frame is not None:
            return self.frame.collective_ms.op
        told = self._newer_summary
        if told is None:
            return max(self._took, key=self._took.__getitem__, default=None)
        # A newer agent may know of more kinds.
        return KINDS[told.dominant] if told.dominant < len(KINDS) else None

    def latencies_ms(self, kind: str) -> tuple[float | None, float | None]:
        """Return the median and the 99th percentile of one kind of collective, in ms."""
        if (frame := self.frame) is not None:
            calls = frame.allreduce_ms if kind == ALL_REDUCE else frame.collective_ms
            return (calls.p50, calls.p99) if kind in (ALL_REDUCE, frame.collective_ms.op) else (None, None)
        told, p50, p99 = self._newer_summary, None, None
        if told is None:
            p50, p99 = self._latencies[kind].percentiles() or (None, None)
        elif kind == ALL_REDUCE:
            p50, p99 = told.p50_ns, told.p99_ns
        elif self.dominant == kind:
            p50, p99 = told.dominant_p50_ns, told.dominant_p99_ns
        return None if p50 is None else p50 / 1e6, None if p99 is None else p99 / 1e6

    @property
    def step(self) -> int | None:
        """Steps completed; where no agent is in it, the newest that its log names."""
        if self.is_outside and self.frame is None:
            return None if (last := self.looks.last) is None else last.log_step
        ended = None if self.member is None or self.member.ended is None else self.member.ended.step
        if self.beat is None:
            return ended if self.frame is None else self.frame.step
        return max(self.beat.step, 0 if self._superseded else self._last_told, ended or 0)

    @property
    def _last_told(self) -> int:
        """The last step that its records and summaries tell of, without those of the generations before."""
        if self.frame is not None:
            return self.frame.step or 0
        told = self.told.step if self.told is not None else 0
        last = self._recent.last
        return told if last is None else max(told, last.step)

    @property
    def ran(self) -> bool:
        """True once it has completed a step, or was held after one."""
        if self.beat is not None and self.beat.state in ("running", *HELD):
            return True
        return (self.step or 0) > 0 or (not self._superseded and self._last_told > 0)

    def look(self, row: Row | None, at: float | None) -> None:
        """Take in how its process is at a moment, None where nobody has looked."""
        before, began = self._row, self._looked_at
        if row is None:
            self._row = self._looked_at = self._cpu_percent = None
            return
        if before is not None and before.process == row.process and at is not None and began is not None and at > began:
            self._cpu_percent = 100 * max(0.0, row.cpu_s - before.cpu_s) / (at - began)
        self._row, self._looked_at = row, at
        if row.status in identity.STOPPED:
            self._stopped_at = at

    def expect(self) -> None:
        """Forget what was known of the process before: another one takes its place, in a new generation."""
        self._superseded, self.met = True, False
        self.member = self.beat = self.frame = self.alive = self.heard_at = self.listened_at = None
        self.look(None, None)

    def evidence(self, now: float) -> states.Evidence:
        """Return what is known of its state."""
        member, beat = self.member, self.beat
        ended = None if member is None else member.ended
        heard_at, looked_at = self.heard_at, self._looked_at
        # How its process was before it was last heard says nothing of now.
        stale = heard_at is not None and looked_at is not None and looked_at < heard_at
        if ended is None or beat is None:
            denies = False
        else:
            denies = beat.state != "ended" and beat.at_ns > ended.at_ns + DENIED_NS
        if member is not None and not member.by_agent:
            # Without an agent it says nothing: that it lives is all there is of its state.
            status = "" if self._row is None else self._row.status
            return states.Evidence(True, ended, self.alive, status, self._cpu_percent, said="running", ran=True)
        # By position, because thousands of these are made in a second.
        return states.Evidence(
            member is not None,
            ended,
            self.alive,
            "" if self._row is None or stale else self._row.status,
            None if stale else self._cpu_percent,
            None if beat is None else beat.state,
            "" if beat is None else beat.activity,
            denies,
            None if heard_at is None else now - heard_at,
            None if self.listened_at is None else now - self.listened_at,
            self.ran,
            self._is_stalled(now),
        )

    def state(self, now: float) -> str:
        """Return the rank's state; see `states.of_rank`."""
        if self.frame is not None and self._is_as_framed(now):
            return self.frame.state
        if self._surely_runs(now):
            return "running"
        return states.of_rank(self.evidence(now), self._thresholds.silent_s)

    def _is_as_framed(self, now: float) -> bool:
        """Say whether nothing newer is known of it than how the observer of its host shows it."""
        has_ended = self.alive is False or (self.member is not None and self.member.ended is not None)
        return not has_ended and now - self._framed_at <= self._thresholds.silent_s

    def _surely_runs(self, now: float) -> bool:
        """Say whether a quick look at the evidence is enough, as nearly always."""
        beat, member, row = self.beat, self.member, self._row
        return (
            beat is not None
            and beat.state == "running"
            and self.heard_at is not None
            and now - self.heard_at <= self._thresholds.silent_s
            and (member is None or member.ended is None)
            and self.alive is not False
            and (row is None or row.status in _USUAL)
            and (beat.step_at_ns is None or now - self._since(beat.step_at_ns) <= self._thresholds.stalled_s)
        )

    def _is_stalled(self, now: float) -> bool:
        if self.beat is None or self.beat.state != "running" or self.beat.step_at_ns is None:
            return False
        age, stalled_s = now - self._since(self.beat.step_at_ns), self._thresholds.stalled_s
        if age <= stalled_s or not (self._recent.last or self.told):
            return False
        walls = [step.wall_ns for step in self._recent] or [self.told.wall_ns if self.told is not None else 0]
        return is_stalled(age, statistics.median(walls) / 1e9, stalled_s)

    def _since(self, step_at_ns: int) -> float:
        """Return since when it could complete a step, by the clock here: its last one, or the end of a pause or freeze
        after that.
        """
        released_at_ns = 0 if self.beat is None else self.beat.released_at_ns or 0
        told = max(step_at_ns, released_at_ns) / 1e9
        return max(told - self.lag_s if self.lag_s else told, self._stopped_at or 0.0)

    @property
    def goes_on(self) -> str:
        """A line on its calls since its last step, where it makes calls and no step; else empty."""
        beat = self.beat
        if beat is None or not beat.calls:
            return ""
        step = "step" if beat.steps_are else "optimizer step"
        calls = f"{plural(beat.calls, 'call')} in group {clean(beat.calls_in, 30)}"
        return f"makes no {step} since step {beat.step:,}, and goes on: {calls}"

    def heard_age(self, now: float) -> float | None:
        """Return the seconds since anything came from it."""
        return None if self.heard_at is None else max(0.0, now - self.heard_at)

    def age(self, now: float) -> float | None:
        """Return the seconds since its last step, or since the end of a later pause; None while it is held."""
        if self.beat is not None and self.beat.state in HELD:
            return None
        if self.frame is not None and self.frame.step_age_s is not None:
            return self.frame.step_age_s + max(0.0, now - self._framed_at)
        last, told = self._recent.last, self.told
        newest = max(
            (self.beat.step_at_ns or 0) if self.beat is not None else 0,
            0 if last is None else last.end_at_ns,
            0 if told is None else told.end_at_ns,
        )
        return max(0.0, now - self._since(newest)) if newest else None


def _of_frame(frame: RankFrame) -> Means:
    return Means(frame.step_ms, frame.phases_ms, frame.device_ms, {name: getattr(frame, name) for name in OTHERS})


def _of_summary(told: Summary) -> Means:
    return means_of(
        told.wall_ns / 1e6,
        {name: span / 1e6 for name, span in zip(SPANS, _spans(told), strict=True) if span is not None},
        {name: rate_of(getattr(told, name), told.wall_ns) for name in AMOUNTS},
    )


def rate_of(amount: float | None, step_ns: float | None) -> float | None:
    """Return so much of each step as so much a second, None where it is not known."""
    return amount / step_ns * 1e9 if amount is not None and step_ns is not None and step_ns > 0 else None
