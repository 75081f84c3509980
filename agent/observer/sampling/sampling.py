"""The thread that looks at ranks without an agent, and says of them what they would have published themselves.

All ranks are looked at together, window after window, so that they can be compared. The looks cost CPU, which the
kernel counts for us: where they cost too much, there is a pause after each window. A process that is stopped is not
looked at: it stands because somebody wants it to.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import resource
import selectors
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import psutil

from ddptop.agent import wire
from ddptop.agent.observer.inspection import dumps
from ddptop.agent.observer.sampling import phases
from ddptop.agent.observer.sampling.gauges import Gauge
from ddptop.agent.observer.sampling.logs import Log, Named, Patterns, newer
from ddptop.agent.observer.sampling.looks import WINDOW_S, Found, Window, link
from ddptop.agent.run import identity
from ddptop.agent.run.rundir import Member, Run
from ddptop.agent.run.script.sources import Sources, read_lines
from ddptop.agent.wire.incoming import cleaned

MOST_OF_A_RANK: Final = 0.025
"""CPU that the looks at a rank may take, in cores; it is measured afterwards, so that this is below 3 %."""
MOST_OF_HOST: Final = 0.01
"""Part of the host's cores that all looks together may take; `LEAST` cores are always allowed."""
LEAST: Final = 0.1
AT_A_TIME: Final = 64
"""Ranks that are looked at together."""
_EVERY_S: Final = 1.0
"""Seconds between two readings of CPU, memory and logs."""
_AGAIN_S: Final = 10.0
"""Seconds until ranks are looked at again where none could be."""
_STARTS: Final = {
    "_find_and_load (<frozen importlib": "imports",
    "init_process_group (": "rendezvous",
}
"""Frames of what a program does before it trains."""
_MOST_SAID: Final = 10
"""Events at most of what does not work, each of them once."""
_PYTHON: Final = re.compile(r"python(\d\.\d{1,2})")


@dataclass(eq=False)
class _Rank:
    member: Member
    thread: phases.Thread
    sources: Sources
    hello: wire.Hello
    gauge: Gauge | None = None
    log: Log | None = None
    named: Named = field(default_factory=Named)
    named_at_ns: int | None = None
    still: str = ""
    """The stack on which it was found last, and on no other."""
    still_since_ns: int = 0
    state: str = "running"
    activity: str = ""
    workers: list[int] = field(default_factory=list)
    """Its children, the next one to be looked at first; empty where it does not wait for data workers."""


class Sampling:
    """The ranks of one run that have no agent; `meet`, `lose` and `take` are for one other thread."""

    def __init__(self, run: Run, wake: Callable[[], None], say: Callable[[str, str], None], patterns: tuple[str, ...]):
        """Look at nothing yet.

        Args:
            run: the run.
            wake: called from the thread once there is something to `take`.
            say: publishes a line, with its level; may be called from any thread.
            patterns: of the user's, for logs.
        """
        self._run, self._wake, self._say = run, wake, say
        self._patterns = Patterns(patterns)
        self._coming: queue.SimpleQueue[tuple[int, Member | None]] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[wire.Telemetry] = queue.SimpleQueue()
        self._ranks: dict[int, _Rank] = {}
        self._selector = selectors.DefaultSelector()
        self._windows: list[Window] = []
        self._found: list[Found] = []
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = self._due = self._read_at = 0.0
        self._spent_s = 0.0
        self._cost_percent = 0.0
        self._said: set[str] = set()

    def meet(self, member: Member) -> None:
        """Look at the process of a rank from now on; at none in its place that has an agent."""
        self._coming.put((member.rank, None if member.by_agent else member))
        if self._thread is None and not member.by_agent:
            # A daemon: whatever holds it up must not prevent the observer from ending.
            self._thread = threading.Thread(target=self._work, name="sampling", daemon=True)
            self._thread.start()

    def lose(self, rank: int) -> None:
        """Look at a rank no more."""
        self._coming.put((rank, None))

    def take(self) -> Iterator[wire.Telemetry]:
        """Yield what ranks would have published."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._told.get_nowait()

    def close(self) -> None:
        """End the looks."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(2 * _EVERY_S)

    def _work(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    self._turn()
                except Exception as error:  # a wall: it costs a turn
                    self._complain(f"looks from outside: {error!r:.200}")
                    self._closing.wait(_AGAIN_S)
        finally:
            for window in self._windows:
                window.give_up()

    def _turn(self) -> None:
        self._welcome()
        now = time.monotonic()
        if now >= self._read_at + _EVERY_S:
            self._read_at = now
            self._read_all()
        if not self._windows and now >= self._due:
            self._begin(now)
        pause_s = max(0.01, min(self._read_at + _EVERY_S, max(self._due, now + 0.05)) - time.monotonic())
        if self._windows:
            for chosen, _ in self._selector.select(pause_s):
                chosen.data()
            self._end_windows()
        else:
            self._closing.wait(min(pause_s, _EVERY_S / 4))

    def _welcome(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                rank, member = self._coming.get_nowait()
                before = self._ranks.get(rank)
                if member is None:
                    self._ranks.pop(rank, None)
                elif before is None or before.member != member:
                    self._ranks[rank] = self._rank_of(member)

    def _rank_of(self, member: Member) -> _Rank:
        run, pid = self._run, member.process.pid
        home = os.path.dirname(os.path.join(run.cwd, run.program)) if run.program.endswith(".py") else run.cwd
        sources = Sources(home, link(f"/proc/{pid}/cwd"))
        version = _PYTHON.search(os.path.basename(link(f"/proc/{pid}/exe")))
        started_at = time.time() - time.monotonic()
        if sys.platform == "linux":
            started_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + member.process.started
        hello = wire.Hello(
            wire.PROTOCOL, run.run, run.run_id, member.rank, member.local_rank, member.world, pid,
            max(0, int(started_at * 1e9)), member.host, run.program, "", version[1] if version else "",
            member.generation,
        )  # fmt: skip
        logs = [each.member.log for each in self._ranks.values() if each.member.rank != member.rank]
        # Of ranks that share a log the first one has it: nobody knows which of them wrote a line.
        log = Log(Path(member.log), self._patterns) if member.log and member.log not in logs else None

        def source(frame: phases.Frame) -> str:
            return read_lines(sources.path(frame.file), [frame.line]).get(frame.line, "")

        made = _Rank(member, phases.Thread(sources.is_library, source), sources, hello, log=log)
        with contextlib.suppress(psutil.Error):
            made.gauge = Gauge(pid)
        self._tell(hello)
        return made

    def _complain(self, text: str) -> None:
        if text not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(text)
            self._say(text, "warning")

    def _tell(self, message: wire.Telemetry) -> None:
        self._told.put(cleaned(message))
        self._wake()

    def _read_all(self) -> None:
        for rank in self._ranks.values():
            # Another process may have its pid.
            if identity.look(rank.member.process) is None:
                continue
            with contextlib.suppress(psutil.Error):
                self._tell(self._beat(rank))
            if rank.log is not None:
                found = rank.log.read()
                if found != Named():
                    rank.named, rank.named_at_ns = newer(found, rank.named), time.time_ns()
        if self._patterns.problem:
            self._complain(self._patterns.problem)

    def _beat(self, rank: _Rank) -> wire.Beat:
        read = None if rank.gauge is None else rank.gauge.read()
        beat = wire.Beat(
            rank.member.rank, time.time_ns(), rank.state, rank.activity, 0, None, 0, generation=rank.member.generation
        )
        return beat if read is None else msgspec.structs.replace(beat, **read._asdict())

    def _begin(self, now: float) -> None:
        program = dumps.executable()
        looked = [rank for rank in self._ranks.values() if _runs(rank)]
        self._due = now + WINDOW_S
        if program is None:
            self._due = now + _AGAIN_S
            for rank in looked:
                self._tell(self._sampled(rank, time.time_ns(), 0, problem=dumps.MISSING))
            return
        self._began, self._spent_s = now, _spent_s()
        # Of very many, others come the next time.
        for rank in looked[:AT_A_TIME]:
            self._ranks[rank.member.rank] = self._ranks.pop(rank.member.rank)
            worker = rank.workers[0] if rank.workers else None
            try:
                self._windows.append(Window(program, rank.member.rank, rank.member.process.pid, self._selector, worker))
            except OSError as error:
                text = f"no stacks from outside: py-spy cannot be started: {error}"
                self._tell(self._sampled(rank, time.time_ns(), 0, problem=text))

    def _end_windows(self) -> None:
        for window in [each for each in self._windows if each.is_over or each.is_late]:
            self._windows.remove(window)
            if window.is_over:
                self._found.append(window.end())
            else:
                window.give_up()
        if self._windows:
            return
        taken, self._found = self._found, []
        now, number = time.monotonic(), max(1, len(taken))
        spent_s = max(0.0, _spent_s() - self._spent_s)
        allowed = min(MOST_OF_A_RANK * number, max(LEAST, MOST_OF_HOST * (os.cpu_count() or 1)))
        self._due = max(now, self._began + spent_s / allowed)
        self._cost_percent = 100 * spent_s / (self._due - self._began) / number
        if not any(found.look.seen for found in taken):
            self._due = now + _AGAIN_S
        for found in taken:
            if (rank := self._ranks.get(found.rank)) is not None:
                try:
                    self._take(rank, found)
                except Exception as error:  # a wall: it costs the look at one rank
                    self._complain(f"looks from outside: {error!r:.200}")

    def _take(self, rank: _Rank, found: Found) -> None:
        on_device = rank.gauge is not None and rank.gauge.on_device
        shares = rank.thread.take(found.look, engine_waits=not on_device)
        span_ns = max(0, found.ended_ns - found.began_ns)
        if shares is None:
            rank.still = ""
            self._tell(self._sampled(rank, found.ended_ns, span_ns, problem=found.problem))
            return
        if not shares.still or shares.still != rank.still:
            rank.still, rank.still_since_ns = shares.still, found.began_ns
        start = _start(found.look.seen)
        rank.state = "starting" if start else "running"
        rank.activity = start or max(shares.phases, key=shares.phases.__getitem__)
        rank.workers = self._workers_of(rank, found.look.seen)
        lines = [(phase, self._name(rank, where), part) for phase, where, part in shares.lines]
        if of_worker := self._of_worker(rank, found.worker, shares.phases.get("data", 0.0)):
            # The loop that draws the batches says less.
            lines = [each for each in lines if each[0] != "data"] + of_worker
        lines = sorted((each for each in lines if each[2] >= 0.005), key=lambda each: -each[2])[: wire.MOST_SAMPLED]
        self._tell(
            self._sampled(
                rank,
                found.ended_ns,
                span_ns,
                looks=sum(found.look.seen.values()),
                shares={phase: part for phase, part in shares.phases.items() if part > 0},
                lines=tuple(wire.SampledLine(*each) for each in lines),
                blocks=shares.blocks,
                busy=round(shares.busy, 4),
                starved=found.look.starved,
            )
        )

    def _sampled(self, rank: _Rank, at_ns: int, span_ns: int, **looks: object) -> wire.Sampled:
        still_at = ""
        if rank.still:
            line = phases.place_of(rank.still, rank.sources.is_library).where
            where, call = "" if line is None else self._name(rank, line), phases.waits_in(rank.still, line)
            still_at = ", in ".join(each for each in (where, call) if each)
        made = wire.Sampled(
            rank.member.rank,
            at_ns,
            span_ns,
            0,
            {},
            still_since_ns=rank.still_since_ns if rank.still else None,
            still_at=still_at,
            cost_percent=self._cost_percent,
            generation=rank.member.generation,
            log_step=rank.named.step,
            log_total=rank.named.total,
            log_loss=rank.named.loss,
            log_at_ns=rank.named_at_ns,
        )
        return msgspec.structs.replace(made, **looks)

    def _name(self, rank: _Rank, frame: phases.Frame) -> str:
        return f"{rank.sources.name(frame.file)}:{frame.line} {frame.function}"

    def _workers_of(self, rank: _Rank, seen: Mapping[str, int]) -> list[int]:
        if not phases.waits_for_workers(seen):
            return []
        pid, listed = rank.member.process.pid, ""
        with contextlib.suppress(OSError):
            listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        alive = [int(each) for each in listed.split()]
        later = [each for each in rank.workers[1:] if each in alive]
        return later or alive

    def _of_worker(self, rank: _Rank, stacks: Counter[str], share: float) -> list[tuple[str, str, float]]:
        found: Counter[str] = Counter()
        for stack, number in stacks.items():
            if (where := phases.in_worker(stack, rank.sources.is_library)) is not None:
                found[f"{self._name(rank, where)}, in a data worker"] += number
        total = sum(found.values())
        return [("data", where, share * number / total) for where, number in found.items()]


def _runs(rank: _Rank) -> bool:
    row = identity.look(rank.member.process)
    if row is None or row.status in identity.STOPPED:
        rank.still = ""
        return False
    return True


def _start(seen: Mapping[str, int]) -> str:
    """Return what a program does before it trains, where most looks found it in that."""
    total = sum(seen.values())
    for frame, name in _STARTS.items():
        if 2 * sum(number for stack, number in seen.items() if frame in stack) > total:
            return name
    return ""


def _spent_s() -> float:
    """Return the CPU time of this thread, and of all children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + ended.ru_utime + ended.ru_stime
