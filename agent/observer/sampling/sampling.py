"""The thread that looks at ranks without an agent, and says of them what they would have published themselves.

All ranks are looked at together, window after window, so that they can be compared. The looks cost CPU, which the
kernel counts for us: where they cost too much, there is a pause after each window. A process that is stopped is not
looked at: it stands because somebody wants it to.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import selectors
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from ddptop.agent import wire
from ddptop.agent.launcher.boards import boards
from ddptop.agent.observer.inspection import dumps
from ddptop.agent.observer.sampling import phases
from ddptop.agent.observer.sampling.logs import Log, Named, Patterns, newer
from ddptop.agent.observer.sampling.looks import WINDOW_S, Found, Window, nothing
from ddptop.agent.outside.processes import version_of
from ddptop.agent.run import identity
from ddptop.agent.run.cores import Usage, children_of
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
_TURN_S: Final = 0.2
"""Seconds of a turn in which nothing comes."""
_AGAIN_S: Final = 10.0
"""Seconds until ranks are looked at again where none could be."""
_MOST_SAID: Final = 10
"""Events at most of what does not work, each of them once."""
_DEVICE: Final = re.compile(r"/dev/(?:nvidia\d+|kfd|davinci\d+|accel/\w+)")


@dataclass(eq=False)
class _Rank:
    member: Member
    thread: phases.Thread
    sources: Sources
    usage: Usage
    log: Log | None
    named: Named = field(default_factory=Named)
    named_at_ns: int | None = None
    on_device: bool = False
    """It has an accelerator open."""
    still: str = ""
    """The stack on which it was found last, and on no other."""
    still_since_ns: int = 0
    state: str = "running"
    activity: str = ""
    workers: list[int] = field(default_factory=list)
    """Its children, the next one to be looked at first; empty where it does not wait for data workers."""

    @property
    def pid(self) -> int:
        return self.member.process.pid

    def name(self, frame: phases.Frame) -> str:
        return f"{self.sources.name(frame.file)}:{frame.line} {frame.function}"

    @property
    def still_at(self) -> str:
        """The line and the call of that stack."""
        if not self.still:
            return ""
        line = phases.place_of(self.still, self.sources.is_library).where
        where = "" if line is None else self.name(line)
        return ", in ".join(filter(None, (where, phases.waits_in(self.still, line))))


class Sampling:
    """The ranks of one run that have no agent; `follow`, `lose` and `take` are for one other thread."""

    def __init__(self, run: Run, say: Callable[[str, str], None], patterns: tuple[str, ...]) -> None:
        """Look at nothing yet.

        Args:
            run: the run.
            say: publishes a line, with its level; may be called from any thread.
            patterns: of the user's, for logs.
        """
        self._run, self._say = run, say
        self._patterns = Patterns(patterns)
        self._coming: deque[tuple[int, Member | None]] = deque()
        self._told: deque[wire.Telemetry] = deque()
        self._ranks: dict[int, _Rank] = {}
        self._selector = selectors.DefaultSelector()
        self._windows: list[Window] = []
        self._found: dict[int, Found] = {}
        """By rank, what came of the windows that began together."""
        self._closing = threading.Event()
        # A daemon: whatever holds it up must not prevent the observer from ending.
        self._thread = threading.Thread(target=self._work, name="sampling", daemon=True)
        self._began = self._due = self._read_at = 0.0
        self._spent_s = 0.0
        self._cost_percent = 0.0
        self._said: set[str] = set()

    def follow(self, member: Member) -> None:
        """Look at the process of a rank from now on; at none in its place that has an agent."""
        self._coming.append((member.rank, None if member.by_agent else member))
        if self._thread.ident is None and not member.by_agent:
            self._thread.start()

    def lose(self, rank: int) -> None:
        """Look at a rank no more."""
        self._coming.append((rank, None))

    def take(self) -> Iterator[wire.Telemetry]:
        """Yield what ranks would have published."""
        while self._told:
            yield self._told.popleft()

    def close(self) -> None:
        """End the looks."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(2 * _EVERY_S)

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                self._turn()
            except Exception as error:  # a wall: it costs a turn
                self._complain(f"looks from outside: {error!r:.200}")
                self._closing.wait(_AGAIN_S)
        for window in self._windows:
            window.give_up()

    def _turn(self) -> None:
        while self._coming:
            self._welcome(*self._coming.popleft())
        now = time.monotonic()
        if now >= self._read_at + _EVERY_S:
            self._read_at = now
            self._read_all()
        if not self._windows and now >= self._due:
            self._begin(now)
        for chosen, _ in self._selector.select(_TURN_S):
            chosen.data()
        if self._windows:
            self._end_windows()

    def _welcome(self, rank: int, member: Member | None) -> None:
        before = self._ranks.get(rank)
        if member is None:
            self._ranks.pop(rank, None)
        # A process that is gone already is lost in a moment.
        elif before is None or before.member != member:
            with contextlib.suppress(OSError):
                self._ranks[rank] = self._rank_of(member)

    def _rank_of(self, member: Member) -> _Rank:
        run, pid = self._run, member.process.pid
        home = os.path.dirname(os.path.join(run.cwd, run.program)) if run.program.endswith(".py") else run.cwd
        sources = Sources(home, identity.link(pid, "cwd"))
        logs = [each.member.log for each in self._ranks.values() if each.member.rank != member.rank]
        # Of ranks that share a log the first one has it: nobody knows which of them wrote a line.
        log = Log(Path(member.log), self._patterns) if member.log and member.log not in logs else None

        def source(frame: phases.Frame) -> str:
            return read_lines(sources.path(frame.file), [frame.line]).get(frame.line, "")

        made = _Rank(member, phases.Thread(sources.is_library, source), sources, Usage(pid), log)
        hello = wire.Hello(
            wire.PROTOCOL, run.run, run.run_id, member.rank, member.local_rank, member.world, pid,
            max(0, int(identity.began_at(member.process) * 1e9)), member.host, run.program, "",
            ".".join(map(str, version_of(pid) or ())), member.generation,
        )  # fmt: skip
        self._tell(hello)
        return made

    def _complain(self, text: str) -> None:
        if text not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(text)
            self._say(text, "warning")

    def _tell(self, message: wire.Telemetry) -> None:
        self._told.append(cleaned(message))

    def _read_all(self) -> None:
        for rank in self._ranks.values():
            # Another process may have its pid.
            if identity.look(rank.member.process) is None:
                continue
            with contextlib.suppress(OSError, psutil.Error):
                self._tell(_beat_of(rank))
            if rank.log is not None and (found := rank.log.read()) != Named():
                rank.named, rank.named_at_ns = newer(found, rank.named), time.time_ns()
        if self._patterns.problem:
            self._complain(self._patterns.problem)

    def _begin(self, now: float) -> None:
        program = dumps.executable()
        looked = [rank for rank in self._ranks.values() if _runs(rank)]
        self._began, self._spent_s = now, _spent_s()
        self._due = now + (_AGAIN_S if program is None else WINDOW_S)
        # Of very many, others come the next time.
        for rank in looked[:AT_A_TIME]:
            self._ranks[rank.member.rank] = self._ranks.pop(rank.member.rank)
            worker = rank.workers[0] if rank.workers else None
            if program is None:
                self._take(rank, nothing(dumps.MISSING))
                continue
            try:
                self._windows.append(Window(program, rank.member.rank, rank.pid, self._selector, worker))
            except OSError as error:
                self._take(rank, nothing(f"no stacks from outside: py-spy cannot be started: {error}"))

    def _end_windows(self) -> None:
        for window in [each for each in self._windows if each.is_over or each.is_late]:
            self._windows.remove(window)
            if window.is_over:
                self._found[window.rank] = window.end()
            else:
                window.give_up()
        if self._windows:
            return
        taken, self._found = self._found, {}
        now, number = time.monotonic(), max(1, len(taken))
        spent_s = max(0.0, _spent_s() - self._spent_s)
        allowed = min(MOST_OF_A_RANK * number, max(LEAST, MOST_OF_HOST * (os.cpu_count() or 1)))
        self._due = max(now, self._began + spent_s / allowed)
        self._cost_percent = 100 * spent_s / (self._due - self._began) / number
        if not any(found.look.seen for found in taken.values()):
            self._due = now + _AGAIN_S
        for rank in [self._ranks[each] for each in taken if each in self._ranks]:
            try:
                self._take(rank, taken[rank.member.rank])
            except Exception as error:  # a wall: it costs the look at one rank
                self._complain(f"looks from outside: {error!r:.200}")

    def _take(self, rank: _Rank, found: Found) -> None:
        seen, shares = found.look.seen, rank.thread.take(found.look, engine_waits=not rank.on_device)
        if not shares.still or shares.still != rank.still:
            rank.still, rank.still_since_ns = shares.still, found.began_ns
        if seen:
            start = phases.start_in(seen)
            rank.state = "starting" if start else "running"
            rank.activity = start or max(shares.phases, key=shares.phases.__getitem__)
            rank.workers = _next_workers(rank) if phases.waits_for_workers(seen) else []
        lines = [wire.SampledLine(phase, rank.name(where), part) for phase, where, part in shares.lines]
        if of_worker := _of_worker(rank, found.worker, shares.phases.get("data", 0.0)):
            # The loop that draws the batches says less.
            lines = [each for each in lines if each.phase != "data"] + of_worker
        lines = sorted((each for each in lines if each.share >= 0.005), key=lambda each: -each.share)
        made = wire.Sampled(
            rank.member.rank,
            found.ended_ns,
            max(0, found.ended_ns - found.began_ns),
            looks=sum(seen.values()),
            shares={phase: part for phase, part in shares.phases.items() if part > 0},
            lines=tuple(lines[: wire.MOST_SAMPLED]),
            still_since_ns=rank.still_since_ns if rank.still else None,
            still_at=rank.still_at,
            cost_percent=self._cost_percent,
            generation=rank.member.generation,
            blocks=shares.blocks,
            log_step=rank.named.step,
            log_total=rank.named.total,
            log_loss=rank.named.loss,
            log_at_ns=rank.named_at_ns,
            problem=found.problem,
            busy=shares.busy,
            starved=found.look.starved if seen else None,
        )
        self._tell(made)


def _runs(rank: _Rank) -> bool:
    row = identity.look(rank.member.process)
    if row is None or row.status in identity.STOPPED:
        rank.still = ""
        return False
    return True


def _beat_of(rank: _Rank) -> wire.Beat:
    """Return its sign of life; raises `OSError` or `psutil.Error` where it has ended."""
    memory, total, load, device = None, None, None, None
    rank.on_device = _uses_device(rank.pid)
    if not rank.on_device:
        memory, total, device = psutil.Process(rank.pid).memory_info().rss, psutil.virtual_memory().total, "cpu"
    for index, board in enumerate(boards() if rank.on_device else ()):
        # The driver may know it by another number than its container does.
        if (used := board.memory_of(rank.pid)) is not None:
            memory, total, load, device = used, board.memory[1], board.load, f"cuda:{index}"
            break
    return wire.Beat(
        rank.member.rank, time.time_ns(), rank.state, rank.activity, 0, None, 0, memory, total, rank.usage.percent(),
        load, device, generation=rank.member.generation,
    )  # fmt: skip


def _uses_device(pid: int) -> bool:
    try:
        return any(_DEVICE.fullmatch(identity.link(pid, f"fd/{each}")) for each in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def _next_workers(rank: _Rank) -> list[int]:
    """Return its children, the one first whose turn it is to be looked at."""
    alive = children_of(rank.pid)
    return [each for each in rank.workers[1:] if each in alive] or alive


def _of_worker(rank: _Rank, stacks: Mapping[str, int], share: float) -> list[wire.SampledLine]:
    """Return the lines by which a data worker makes batches, as parts of the time for which its rank waits for them."""
    found: Counter[str] = Counter()
    for stack, number in stacks.items():
        if (where := phases.in_worker(stack, rank.sources.is_library)) is not None:
            found[f"{rank.name(where)}, in a data worker"] += number
    return [wire.SampledLine("data", where, share * number / found.total()) for where, number in found.items()]


def _spent_s() -> float:
    """Return the CPU time of this thread, and of all children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + ended.ru_utime + ended.ru_stime
