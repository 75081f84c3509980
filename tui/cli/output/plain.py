"""The run as lines of text, for pipes, logs and CI: one per interval, every change, a summary.

Shows what the dashboard shows, from the same frames.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TextIO

from ddptop.agent.client.frame import Frame
from ddptop.agent.text import plural
from ddptop.agent.wire import PHASES
from ddptop.agent.wire.frames import ENDED, OUTSIDE, EventLine
from ddptop.tui.cli.parsing import as_called
from ddptop.tui.drawing.units import duration, share, significant
from ddptop.tui.link.source import Source
from ddptop.tui.model.diagnosis import hang
from ddptop.tui.model.sentences import by_looks, not_linked, outside, unheard_hosts, waits_for, with_rank

POLL_S = 0.05
_PATIENCE_S: Final = 5.0
"""Seconds for which a start may wait for other hosts before that is said."""
_SAME: Final = 0.2
"""Share by which the time of a phase may differ between ranks that count as alike."""
_LITTLE: Final = 0.05
"""Share of the step up to which a difference does not matter."""


class PlainView:
    """Follows one run until it ends."""

    def __init__(self, source: Source, out: TextIO, interval_s: float, report: Callable[[], list[str]] = list) -> None:
        """Prepare to follow a run; `report` returns the lines on the end of a failed one."""
        self._report = report
        self._source = source
        self._out = out
        self._interval_s = interval_s
        self._told: tuple[EventLine, ...] = ()
        self._begun: set[int | None] = set()
        """Numbers of the verdicts whose beginning was said."""
        self._starting = ""
        self._announced = False
        self._latest = 0.0
        """The time of the newest line: later ones do not go back behind it."""
        self._last_step: int | None = None
        self._next_standing_s = 0.0
        """Seconds that the run has to stand before that is said again."""
        self._next_waiting_s = _PATIENCE_S
        """Seconds that a start has to wait before that is said, or said again."""
        self._waits_since: float | None = None
        """When a new start after a failure was first said to wait; None while none does."""
        self._hang: int | None = None
        """The number of the verdict of the newest hang."""
        self._advised: int | None = None
        """The same of the hang of which was said what can be done."""

    def follow(self, sleep: Callable[[float], None] = time.sleep) -> Frame:
        """Print until the run has ended and return the last frame; may be called again after an interruption."""
        due = time.monotonic()
        while True:
            self._source.poll()
            frame = self._source.frame()
            self._announce(frame)
            self._tell_events(frame)
            self._tell_start(frame)
            if frame.state in ENDED:
                return self._summarize(frame)
            if time.monotonic() >= due and by_looks(frame):
                self._say(frame.at, line(frame))
                due = time.monotonic() + self._interval_s
            elif time.monotonic() >= due and frame.step and frame.step_ms is not None:
                if frame.step != self._last_step:
                    self._say(frame.at, line(frame))
                self._last_step = frame.step
                due = time.monotonic() + self._interval_s
            self._tell_standing(frame)
            self._tell_waiting(frame)
            self._advise(frame)
            sleep(POLL_S)

    def _tell_standing(self, frame: Frame) -> None:
        """Say that the run makes no steps, and again whenever that has gone on for twice as long.

        A hang is said by the event of its beginning; what is said again is then the hang, with the time until the
        collectives fail.
        """
        standing = frame.standing_s
        stuck = hang.verdict_of(frame)
        if standing is None and stuck is not None and stuck.is_hang:
            # Before the first step there is none to count from.
            standing = max(0.0, frame.at - stuck.since_at_ns / 1e9)
        if stuck is not None and standing is not None and stuck.number != self._hang:
            self._hang = stuck.number
            self._next_standing_s = 2 * standing
        if standing is None:
            self._next_standing_s = 0.0
        elif standing >= self._next_standing_s:
            said = frame.standing
            if stuck is not None:
                said = " · ".join(filter(None, (stuck.text, hang.countdown(frame, stuck))))
            self._say(frame.at, f"{progress(frame)}  {said}")
            self._next_standing_s = 2 * standing

    def _tell_waiting(self, frame: Frame) -> None:
        """Say what a start waits for, and again whenever that has gone on for twice as long.

        The first one waits from the beginning of the run; of a new one it is said only when it has lasted.
        """
        waits, since = waits_for(frame), frame.started_at
        if frame.state != "starting":
            if not waits:
                self._waits_since = None
            elif self._waits_since is None:
                self._waits_since, self._next_waiting_s = frame.at, 0.0
            since = self._waits_since
        waited = 0.0 if since is None else frame.at - since
        if waits and waited >= self._next_waiting_s:
            self._say(frame.at, f"starting: {waits}" if frame.state == "starting" else waits)
            self._next_waiting_s = max(_PATIENCE_S, 2 * waited)

    def _advise(self, frame: Frame) -> None:
        """Say what can be done about a hang, once for each."""
        stuck = hang.urgent(frame)
        if stuck is not None and stuck.number != self._advised:
            self._advised = stuck.number
            self._say(frame.at, hang.advice(frame))

    def _announce(self, frame: Frame) -> None:
        if not self._announced:
            self._announced = True
            on = f" on {len(frame.hosts)} hosts" if frame.hosts.several else ""
            place = f"{on} ({frame.placement})" if frame.placement else on
            # What was before anybody looked follows it, in its order.
            at = min([frame.at, *(event.at for event in frame.events)])
            self._say(at, f"{frame.run}: {frame.program}, {plural(frame.world, 'rank')}{place}")
            if known := outside(frame, f"ddptop attach {frame.run} --join"):
                self._say(at, known)

    def _tell_events(self, frame: Frame) -> None:
        known = set(self._told)
        for event in frame.events:
            if event.verdict is not None and event.verdict in self._begun:
                # The same verdict, by its record, which has the figures of its end.
                continue
            if event not in known:
                self._begun.add(event.verdict)
                # What is known only later, as the beginning of a hang, has the time at which it is said.
                self._say(event.at if event.at >= self._latest else frame.at, _text_of(event, frame))
        self._told = frame.events

    def _tell_start(self, frame: Frame) -> None:
        """Say which phase the start has come to, as the first rank reports it."""
        if frame.state != "starting" or frame.ranks[0].state != "starting":
            return
        phase = frame.ranks[0].activity
        # Between the first word and the rank's own there is nothing to say.
        if phase != self._starting and (not self._starting or frame.ranks[0].heard_age_s is not None):
            self._starting = phase
            self._say(frame.at, f"starting: {phase}")

    def _summarize(self, frame: Frame) -> Frame:
        for text in summary(frame):
            self._say(frame.at, text)
        for text in self._report():
            print(text, file=self._out)
        self._out.flush()
        return frame

    def _say(self, at: float, text: str) -> None:
        self._latest = max(self._latest, at)
        stamp = time.strftime("%H:%M:%S", time.localtime(self._latest))
        print(f"{stamp}  {as_called(text)}", file=self._out, flush=True)


def _text_of(event: EventLine, frame: Frame) -> str:
    """Return an event with the host of its rank, where there are several."""
    host = frame.hosts.name_of(event.rank)
    return with_rank(event.text, event.rank, host) if host else event.text


def line(frame: Frame) -> str:
    """Return the group's line for an interval."""
    parts = [progress(frame)]
    if frame.loss is not None:
        parts.append(f"loss {'~' * frame.is_loss_unsure}{significant(frame.loss)}")
    parts += throughput(frame)
    parts.append(by_looks(frame) or f"step {phases(frame)}")
    if frame.slowest is not None and frame.verdict is None:
        host = frame.hosts.name_of(frame.slowest)
        parts.append(f"slowest rank {frame.slowest}{f' ({host})' if host else ''}")
    if frame.verdict is not None:
        parts.append(frame.verdict.text)
    parts += filter(None, (unheard_hosts(frame), not_linked(frame)))
    return "  ".join(parts)


def throughput(frame: Frame) -> list[str]:
    """Return `8,464 samples/s`, or tokens, and `MFU 41.2%`, as far as they are known."""
    found = []
    if frame.tokens_per_s is not None:
        found.append(f"{frame.tokens_per_s:,.0f} tokens/s")
    elif frame.samples_per_s is not None:
        found.append(f"{frame.samples_per_s:,.0f} samples/s")
    return found + ([] if frame.mfu is None else [f"MFU {share(frame.mfu).strip()}"])


def progress(frame: Frame) -> str:
    """Return `step 128/400 32%  ETA 0:42`, as far as it is known."""
    if frame.step is None:
        return "steps not known" if frame.known_by == OUTSIDE else "step –"
    if frame.total_steps is None:
        return f"step {frame.step:,}"
    by = f" by {frame.total_by}" if frame.total_by else ""
    text = f"step {frame.step:,}/{frame.total_steps:,}{by} {100 * frame.step / max(1, frame.total_steps):.0f}%"
    return text + (f"  ETA {duration(frame.eta_s).strip()}" if frame.eta_s is not None else "")


def phases(frame: Frame) -> str:
    """Return `81.0 ms (data 2.0 to 33.1, forward 30.0, …)`: a range where the ranks differ, else the mean."""
    if frame.current_step_ms is None:
        return "–"
    # Batches are copied only where the training is on a device.
    had = [phase for phase in PHASES if phase != "copy" or phase in (frame.phases_ms or {})]
    return f"{frame.step_ms:,.1f} ms ({', '.join(f'{phase} {_spread(frame, phase)}' for phase in had)})"


def _spread(frame: Frame, phase: str) -> str:
    mean = (frame.phases_ms or {}).get(phase)
    if mean is None:
        return "–"
    of_ranks = [known[phase] for known in frame.values("phases_ms") if known and phase in known]
    least, most = min(of_ranks, default=mean), max(of_ranks, default=mean)
    # The mean of a slow rank and of the others describes neither.
    if most - least > max(_SAME * most, _LITTLE * (frame.step_ms or 0.0)):
        return f"{least:,.1f} to {most:,.1f}"
    return f"{mean:,.1f}"


def summary(frame: Frame) -> list[str]:
    """Return the closing lines of an ended run."""
    took = None if frame.ended_at is None or frame.started_at is None else frame.ended_at - frame.started_at
    code = f", exit code {frame.exit_code}" if frame.exit_code is not None else ""
    lines = [f"{frame.run} {frame.state}{code}" + (f" after {duration(took).strip()}" if took is not None else "")]
    if seen := by_looks(frame):
        lines.append(f"{progress(frame)}; {seen}")
    elif frame.step:
        loss = "" if frame.loss is None else f", last loss {'~' * frame.is_loss_unsure}{significant(frame.loss)}"
        metrics = frame.ranks[0].metrics if frame.ranks else {}
        shown = "".join(f", {name} {significant(value)}" for name, value in metrics.items())
        lines.append(f"{progress(frame)}{loss}{shown}; usual step {phases(frame)}")
    if frame.injected:
        lines.append(f"injected faults: {frame.injected}")
    lines += [f"verdict: {verdict.text}" for verdict in frame.verdicts]
    if frame.note:
        lines.append(f"note: {frame.note}")
    if frame.cause:
        lines.append(f"first cause: {frame.cause}" if frame.state == "failed" else frame.cause)
    if frame.launched:
        lines.append(f"logs: ddptop logs {frame.run}")
    return lines
