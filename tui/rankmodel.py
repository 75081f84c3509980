"""What the dashboard knows of one rank; changed by the store alone."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable

from ddptop.agent.rundir import Member
from ddptop.agent.wire import PHASES, Beat, Hello, Step
from ddptop.tui.curve import POINTS, Curve
from ddptop.tui.frame import RankFrame
from ddptop.tui.units import clean

WINDOW_NS = 2_000_000_000
"""Step time and phases are means over this much training, at least over one step."""
SILENT_S = 3.5
"""Without a heartbeat for so long, three of them missed, a rank is silent."""
STALLED_S = 10.0
"""Without a step for so long, and for ten usual steps, a rank is stalled."""
PENDING = 20_000
"""Live records kept while an earlier gap is being filled."""


class RankModel:
    """One rank: its identity, its last beat, its records in order, what is missing of them."""

    def __init__(self, rank: int, listener: Callable[[int, Step], None] = lambda rank, step: None) -> None:
        self.rank = rank
        self._listener = listener
        """Told of every record, in order and once."""
        self.hello: Hello | None = None
        self.beat: Beat | None = None
        self.member: Member | None = None
        self.alive: bool | None = None
        """Whether its process runs, None before anybody looked."""
        self.heard_at: float | None = None
        self.missed = 0
        self.metrics: dict[str, float] = {}
        self.loss: float | None = None
        self._seq = 0
        self._pending: list[Step] = []
        self._recent: deque[Step] = deque(maxlen=512)
        self._losses: deque[float | None] = deque(maxlen=POINTS)
        self._latencies: deque[int] = deque(maxlen=512)
        self._curve = Curve()
        self._past_steps = 0
        """Steps of the generations before, which the curve counts on from."""
        self._summary: _Summary | None = None

    def successor(self, past_steps: int) -> RankModel:
        """Return the model of the process that has taken this one's place; the loss curve goes on."""
        model = RankModel(self.rank, self._listener)
        model.member, model.alive = self.member, self.alive
        model._curve, model._past_steps = self._curve, past_steps
        return model

    @property
    def last_step(self) -> int:
        """The last step on the curve."""
        return self._past_steps + (self._recent[-1].step if self._recent else 0)

    def take(self, steps: Iterable[Step]) -> None:
        """Take in records as they come; what follows a gap waits until it is filled."""
        for step in steps:
            if step.seq == self._seq + 1:
                self._append(step)
            elif step.seq > self._seq + 1 and len(self._pending) < PENDING:
                self._pending.append(step)

    @property
    def gap(self) -> int | None:
        """Number of the first record that is missing, None when there is no gap."""
        behind = self._pending or (self.beat is not None and self.beat.seq > self._seq)
        return self._seq + 1 if behind else None

    def fill(self, steps: Iterable[Step], *, last: bool) -> None:
        """Take in records asked for; after the `last` ones, what is still missing is given up and counted."""
        for step in steps:
            if step.seq > self._seq:
                self.missed += step.seq - self._seq - 1 if self._seq else 0
                self._append(step)
        if last:
            pending, self._pending = self._pending, []
            for step in sorted(pending, key=lambda waiting: waiting.seq):
                if step.seq > self._seq:
                    self.missed += step.seq - self._seq - 1 if self._seq else 0
                    self._append(step)

    def _append(self, step: Step) -> None:
        self._seq = step.seq
        self._listener(self.rank, step)
        self._recent.append(step)
        self._losses.append(step.loss)
        if step.loss is not None:
            self.loss = step.loss
            self._curve.add(self._past_steps + step.step, step.loss)
        self._latencies.extend(
            call.duration_ns
            for call in step.collectives
            if call.duration_ns is not None and call.op.startswith("all_reduce")
        )
        self.metrics.update({clean(name, 40): value for name, value in step.metrics.items()})
        self._summary = None

    @property
    def summary(self) -> _Summary:
        """Means over the recent window; computed once for each batch of records."""
        if self._summary is None:
            self._summary = _Summary(self._recent, self._latencies)
        return self._summary

    def state(self, now: float) -> str:
        """Return the rank's state, one of `frame.STATES`."""
        if self.member is not None and self.member.ended is not None:
            if self.member.ended.exit_code:
                return "failed"
            return "finished" if self.member.ended.stopped_by is None else "stopped"
        if self.alive is False:
            return "lost"
        if self.beat is None:
            return "starting"
        if self.heard_at is not None and now - self.heard_at > SILENT_S:
            return "silent"
        if self.beat.state == "running" and self._is_stalled(now):
            return "stalled"
        return "finished" if self.beat.state == "ended" else self.beat.state

    def _is_stalled(self, now: float) -> bool:
        if self.beat is None or self.beat.step_at_ns is None or not self._recent:
            return False
        age = now - self.beat.step_at_ns / 1e9
        return age > STALLED_S and age > 10 * statistics.median(step.wall_ns for step in self._recent) / 1e9

    def frame(
        self, now: float, state: str, log: str | None = None, *, exchange: tuple[float, float] | None = None
    ) -> RankFrame:
        """Return the picture of this rank; `exchange` is its waiting and transfer in all-reduces, ms a step."""
        beat, hello, member, summary = self.beat, self.hello, self.member, self.summary
        moving = state in ("running", "stalled", "pausing")
        activity = "" if beat is None else clean(beat.activity, 60)
        if state == "starting" and beat is None:
            activity = "waiting for the process"
        device = None if beat is None or beat.device is None else clean(beat.device, 20)
        return RankFrame(
            rank=self.rank,
            state=state,
            activity=activity,
            pid=member.process.pid if member is not None else None,
            host=None if member is None else clean(member.host, 60),
            step=None if beat is None else max(beat.step, self._recent[-1].step if self._recent else 0),
            step_age_s=self._age(now),
            heard_age_s=None if self.heard_at is None else max(0.0, now - self.heard_at),
            loss=self.loss,
            losses=tuple(self._losses),
            curve=self._curve.points(),
            step_ms=summary.step_ms,
            phases_ms=summary.phases_ms,
            allreduce_p50_ms=summary.p50_ms,
            allreduce_p99_ms=summary.p99_ms,
            allreduce_wait_ms=None if exchange is None else exchange[0],
            allreduce_transfer_ms=None if exchange is None else exchange[1],
            timed_every=1 if beat is None else beat.timed_every,
            samples_per_s=summary.samples_per_s if moving else None,
            memory_bytes=None if beat is None else beat.memory_bytes,
            memory_total_bytes=None if beat is None else beat.memory_total_bytes,
            memory_kind="device" if device is not None and not device.startswith("cpu") else "process",
            cpu_percent=None if beat is None else beat.cpu_percent,
            device_percent=None if beat is None else beat.device_percent,
            device=device,
            mechanism=None if beat is None or beat.mechanism is None else clean(beat.mechanism, 60),
            outstanding=0 if beat is None else beat.outstanding,
            log=log if member is None else member.log,
            metrics=dict(self.metrics),
            missed=self.missed,
            dropped=0 if beat is None else beat.dropped,
            refused=0 if beat is None else beat.refused,
            fault=None if beat is None or beat.fault is None else clean(beat.fault, 200),
            health=None if beat is None or beat.health is None else clean(beat.health, 120),
            device_ms=summary.device_ms,
            ended=self._ended(),
            torch_version=None if beat is None or beat.torch_version is None else clean(beat.torch_version, 40),
            python_version=None if hello is None else clean(hello.python_version, 40),
        )

    def _age(self, now: float) -> float | None:
        newest = max(
            (self.beat.step_at_ns or 0) if self.beat is not None else 0,
            self._recent[-1].end_at_ns if self._recent else 0,
        )
        return max(0.0, now - newest / 1e9) if newest else None

    def _ended(self) -> str | None:
        if self.member is None or self.member.ended is None:
            return "its process is gone" if self.alive is False else None
        ended = self.member.ended
        return f"exit code {ended.exit_code}" + (f": {clean(ended.error, 300)}" if ended.error else "")


class _Summary:
    """Means over the last `WINDOW_NS` of training, in ms; None where nothing is known."""

    def __init__(self, recent: deque[Step], latencies: deque[int]) -> None:
        window = _window(recent)
        count, wall = len(window), sum(step.wall_ns for step in window)
        self.step_ms = wall / count / 1e6 if count else None
        self.phases_ms = _phases(window) if count else None
        self.device_ms = _device(window)
        samples = [step.samples for step in window if step.samples is not None]
        self.samples_per_s = sum(samples) / wall * 1e9 if samples and wall else None
        self.p50_ms = self.p99_ms = None
        if latencies:
            ordered = sorted(latencies)
            self.p50_ms = ordered[len(ordered) // 2] / 1e6
            self.p99_ms = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] / 1e6


def _window(recent: deque[Step]) -> list[Step]:
    window: list[Step] = []
    total = 0
    for step in reversed(recent):
        if window and total + step.wall_ns > WINDOW_NS:
            break
        window.append(step)
        total += step.wall_ns
    return window


def _phases(window: list[Step]) -> dict[str, float]:
    """Return the mean of each phase in ms; a phase that was not observed is left out."""
    phases = {}
    for phase in PHASES:
        values = [getattr(step, f"{phase}_ns") for step in window]
        if None not in values:
            phases[phase] = sum(values) / len(values) / 1e6
    return phases


def _device(window: list[Step]) -> dict[str, float] | None:
    """Return the mean of each phase on the device in ms, None where no step has all of them."""
    names = [phase for phase in PHASES if phase != "wait"]
    known = [step.device_ns for step in window if step.device_ns is not None and len(step.device_ns) == len(names)]
    if not known:
        return None
    return {name: sum(spans) / len(known) / 1e6 for name, spans in zip(names, zip(*known, strict=True), strict=True)}
