"""A run with a clock of its own, whose ranks train, evaluate, save, wait and hang as a test says, and are watched.

What the ranks tell is what real ones do: heartbeats once a second, summaries, and inspections when they are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from ddptop.agent.observer.judge.hang.progress import ONE
from ddptop.agent.observer.judge.hang.watch import Watch
from ddptop.agent.wire import Beat, Frame, GroupCalls, Inspection, OpenCall, PastCall, Summary, Thread, Verdict, Work

BEGIN = 1_000 * ONE
TICK_S = 0.1
REDUCE = PastCall("all_reduce", 4 << 20)
BARRIER = PastCall("barrier", 0)
MAIN = Frame("main", "train.py", 31, "loss.backward()")
BACKWARD = Frame("backward", "torch/_tensor.py", 647, library=True)
ALL_REDUCE = Frame("all_reduce", "torch/distributed/distributed_c10d.py", 3000, library=True)


def in_user_code(line: int = 31, function: str = "main", source: str = "", file: str = "train.py") -> tuple[Frame, ...]:
    """Return a stack whose innermost frame is the user's."""
    return (Frame(function, file, line, source), Frame("<module>", "train.py", 90))


def in_library(file: str, function: str, line: int = 1, caller: str = "main", user_line: int = 31) -> tuple[Frame, ...]:
    """Return a stack whose innermost frame is a library's."""
    return (Frame(function, file, line, library=True), *in_user_code(user_line, caller))


@dataclass
class Spot:
    """Where a rank is at one moment."""

    frames: tuple[Frame, ...] = (ALL_REDUCE, MAIN)
    open: OpenCall | None = None
    calls: int = 0
    recent: tuple[PastCall, ...] = ()
    group: str = "0"
    ranks: tuple[int, ...] = ()
    status: str = "sleeping"
    cpu: float | None = 2.0
    own_cpu: float | None = None
    """Without its data workers, where that is less."""
    by: str = "agent"
    observed: bool = True
    state: str = "running"
    activity: str = "forward"
    silent: bool = False
    """It sends no heartbeats, and does not answer."""
    holds_gil: bool | None = None
    lock: str = ""
    """The lock that its thread waits for, and its holder."""
    swapped: int | None = None
    """Bytes on the swap device of a rank that swaps."""
    memory: int | None = None
    """Bytes of its memory."""
    moved: int | None = None
    """Bytes that it has read and written."""
    work: Work | None = None
    dead_thread: str = ""
    problem: str = ""
    groups: tuple[GroupCalls, ...] | None = None
    """Instead of the one group that follows from the rest."""
    ahead: int = 0
    """Steps that it has made beyond those of the run."""

    exception: str = ""
    """Type and message of an exception that it handles."""
    raised_at: str = ""

    def inspection(self, rank: int, step: int, at_ns: int) -> Inspection:
        """Return what the rank answers, or what is seen of it from outside."""
        outside = self.silent or self.by != "agent"
        groups = (GroupCalls(self.group, self.calls, self.ranks, self.recent),)
        thread = Thread("MainThread", self.frames, main=True, holds_gil=self.holds_gil, lock=self.lock)
        return Inspection(
            rank,
            at_ns,
            ("system" if self.by == "agent" else self.by) if outside else "agent",
            100 + rank,
            "" if outside else self.state,
            step=0 if outside else step + self.ahead,
            threads=(thread,) if self.frames else (),
            open=() if outside or self.open is None else (self.open,),
            groups=() if outside else groups if self.groups is None else self.groups,
            observed=self.observed and not outside,
            status=self.status,
            cpu_percent=self.cpu if self.own_cpu is None else self.own_cpu,
            swapped_bytes=self.swapped,
            page_reads_per_s=None if self.swapped is None else 5_000.0,
            memory_bytes=self.memory,
            moved_bytes=self.moved,
            work=self.work,
            dead_thread=self.dead_thread,
            problem=self.problem,
            exception="" if outside else self.exception,
            raised_at="" if outside else self.raised_at,
        )


Where = Callable[[int, float], Spot]
"""Returns the place of a rank so many seconds after the beginning of what it does."""


def called(number: int, past: PastCall = REDUCE, *, group: str = "0", seconds: float = 0.0) -> OpenCall:
    """Return a call that has been open for some time."""
    return OpenCall(past.op, group, number, past.bytes, int(seconds * ONE), blocking=True)


def waits(number: int, past: PastCall = REDUCE, *, seconds: float = 0.0, line: int = 40, **more: object) -> Spot:
    """Return the place of a rank that stands in call `number`."""
    frames = (ALL_REDUCE, Frame("main", "train.py", line))
    return Spot(frames, called(number, past, seconds=seconds), number, **more)  # type: ignore[arg-type]


@dataclass
class Run:
    """A run, watched by the observer of its host."""

    world: int = 4
    step_s: float = 0.2
    everyone: bool = True
    timeout_s: float | None = 1800.0
    now_ns: int = BEGIN
    step: int = 0
    calls: int = 0
    asked: list[tuple[int, ...]] = field(default_factory=list)
    told: list[tuple[float, Verdict]] = field(default_factory=list)
    """Each finding that differs from the one before, with its time in seconds."""
    answer_s: float = 0.2

    def __post_init__(self) -> None:
        self.watch = Watch(self.world, everyone=self.everyone)
        self._step_at_ns: int | None = None
        self._beat_ns = 0
        self._pending: list[tuple[int, int, dict[int, Inspection]]] = []
        self.frozen = False
        for rank in range(self.world):
            self.watch.progress.meet(rank, self.now_ns)

    @property
    def hangs(self) -> list[Verdict]:
        """The findings that say that the run hangs."""
        return [finding for _, finding in self.told if finding.kind == "hang"]

    def train(self, seconds: float) -> None:
        """Make a step each `step_s`, each with one collective."""
        done = 0.0
        while done < seconds:
            self.spend(self.step_s, lambda rank, _: self._training(rank))
            self.make_step()
            done += self.step_s

    def make_step(self) -> None:
        """Complete a step on all ranks."""
        self.step += 1
        self.calls += 1
        self._step_at_ns = self.now_ns
        summary = Summary(0, self.step, self.now_ns, self.step, self.step, 1, int(self.step_s * ONE), 0, 0, 0, 0, 0, 0)
        self.watch.progress.summary(summary)

    def _training(self, rank: int) -> Spot:
        moving = in_library("torch/nn/modules/linear.py", "forward", self.now_ns // 7 % 1000)
        return Spot(moving, calls=self.calls, cpu=90.0, status="running")

    def spend(self, seconds: float, where: Where) -> None:
        """Let time pass in which the ranks are where they are said to be, and make no step."""
        for done in _ticks(seconds):
            self.now_ns += int(min(TICK_S, seconds - done) * ONE)
            self._tick(where, done)

    def until_told(self, seconds: float, where: Where) -> Verdict:
        """Let time pass until something is told; return it, and fail after so many seconds."""
        before = len(self.told)
        for done in _ticks(seconds):
            self.now_ns += int(TICK_S * ONE)
            self._tick(where, done)
            if len(self.told) > before:
                return self.told[-1][1]
        raise AssertionError(f"nothing was told within {seconds:.1f} s")

    def _tick(self, place: Where, since: float) -> None:
        def where(rank: int) -> Spot:
            return place(rank, since)

        watch = self.watch
        if self.now_ns - self._beat_ns >= ONE:
            self._beat_ns = self.now_ns
            for rank in range(self.world):
                spot = where(rank)
                if not spot.silent:
                    watch.beat(self._beat(rank, spot), self.now_ns)
        for pending in [each for each in self._pending if each[0] <= self.now_ns]:
            self._pending.remove(pending)
            if pending[1] == watch.round:
                watch.answer(pending[2], self.now_ns)
        if watch.stands(self.now_ns):
            if self.frozen:
                watch.rest(self.now_ns)
            elif (question := watch.question(self.now_ns)) is not None:
                self.asked.append(question.ranks)
                found = {
                    rank: where(rank).inspection(rank, self.step + where(rank).ahead, self.now_ns)
                    for rank in question.ranks
                }
                if not question.stacks:
                    found = {rank: _bare(each) for rank, each in found.items()}
                self._pending.append((self.now_ns + int(self.answer_s * ONE), watch.round, found))
        finding = watch.finding(self.now_ns)
        if finding is not None and (not self.told or _essence(self.told[-1][1]) != _essence(finding)):
            self.told.append((self.now_ns / ONE, finding))

    def _beat(self, rank: int, spot: Spot) -> Beat:
        return Beat(
            rank,
            self.now_ns,
            spot.state,
            spot.activity,
            self.step + spot.ahead,
            self.now_ns if spot.ahead else self._step_at_ns,
            self.step + spot.ahead,
            cpu_percent=spot.cpu,
            timeout_s=self.timeout_s,
        )


def _essence(finding: Verdict) -> Sequence[object]:
    hang = finding.hang
    assert hang is not None
    return finding.kind, hang.kind, hang.ranks


def _bare(inspection: Inspection) -> Inspection:
    return msgspec.structs.replace(inspection, threads=())


def _ticks(seconds: float) -> Iterator[float]:
    done = 0.0
    while done < seconds - 1e-9:
        yield done
        done += TICK_S
