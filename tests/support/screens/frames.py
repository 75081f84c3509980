"""Frames and sources for tests of the screens; run as a program it shows a moving run.

python tests/support/screens/frames.py [WORLD] [STATE]
"""

from __future__ import annotations

import math
import random
import sys
import threading
import time
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

from msgspec.structs import replace

from ddptop.agent.client.acting.kill import Aim, Consent
from ddptop.agent.client.acting.membership import ProcessLine
from ddptop.agent.client.acting.waiting import Waiting
from ddptop.agent.client.diagnosis.stacks import Stacks
from ddptop.agent.client.frame import Frame, whole
from ddptop.agent.observer.model.framer import Framer
from ddptop.agent.observer.model.ranks.looks import mean_of
from ddptop.agent.observer.model.store import Store
from ddptop.agent.run.identity import Process
from ddptop.agent.run.rundir import RunDirError
from ddptop.agent.wire import Collective, Hang, Step, Verdict
from ddptop.agent.wire.diagnoses.kept import Kept
from ddptop.agent.wire.frames import ENDED, OUTSIDE, AllReduce, ByLooks, Calls, EventLine, RankFrame
from ddptop.agent.wire.report import Report
from ddptop.tui.link.source import Refused, Unholdable
from support.fakes.observers import all_ranks
from support.values.histories import RecordedHistory
from support.values.inspections import inspection

NOW = 1_800_000_000.0
"""The one moment at which still frames are taken."""

EVIL = "x[/foo] [bold red]y[@click=app.bell]z[/] \x1b]0;owned\x07\x1b[31mred\x1b[0m \x9b2Jc1 \x07\u202egnp.\u200b"
"""Markup and escape sequences, as a hostile program would print them."""

LOOKS = (
    ByLooks(
        {"wait": 0.38, "backward": 0.27, "forward": 0.22, "optimizer": 0.06, "data": 0.03, "other": 0.04},
        {"wait": 0.033, "backward": 0.03, "forward": 0.028, "optimizer": 0.016, "data": 0.012, "other": 0.013},
        214, "train.py:40 main", "backward", 0.45, cost_percent=2.1,
    ),
    ByLooks(
        {"forward": 0.57, "backward": 0.25, "optimizer": 0.07, "data": 0.04, "wait": 0.03, "other": 0.04},
        {"forward": 0.034, "backward": 0.03, "optimizer": 0.018, "data": 0.013, "wait": 0.012, "other": 0.013},
        210, "train.py:31 slow", "forward", 0.38, cost_percent=2.1,
    ),
)  # fmt: skip
"""Of an ordinary rank, and of one that holds it back."""

_SHARES = {"data": 0.14, "forward": 0.26, "backward": 0.36, "optimizer": 0.06, "wait": 0.14, "other": 0.04}


def rank_frame(rank: int = 0, state: str = "running", step: int = 1284, **changes: Any) -> RankFrame:
    """Return a rank in that state, as it looks after `step` steps."""
    rng = random.Random(rank * 7919 + 1)
    losses = tuple(
        2.4 * math.exp(-(step - 239 + index) / 900) + 0.3 + rng.uniform(-0.08, 0.08)
        for index in range(max(0, 240 - max(0, 240 - step)))
    )
    step_ms = 81.3 if rank != 2 else 93.4
    phases = {phase: share * 81.3 for phase, share in _SHARES.items()}
    if rank == 2:
        phases = {**phases, "data": phases["data"] + 23.0, "wait": phases["wait"] - 10.9}
    full = RankFrame(
        rank=rank,
        state=state,
        activity="backward",
        pid=4711 + rank,
        host="node-a",
        step=step,
        step_age_s=0.1 + 0.01 * rank,
        heard_age_s=0.4,
        loss=losses[-1] if losses else None,
        losses=losses,
        step_ms=step_ms,
        phases_ms=phases,
        allreduce_ms=AllReduce(12.1 + rank, 48.2 + rank),
        collective_ms=Calls("all_reduce", 12.1 + rank, 48.2 + rank),
        samples_per_s=103.0,
        memory_bytes=(812 + 3 * rank) * 2**20,
        cpu_percent=96.0 + rank,
        device="cpu",
        mechanism="process-group hooks",
        metrics={"accuracy": 0.4375, "lr": 0.1},
    )
    if state == "starting":
        full = RankFrame(
            rank=rank,
            state="starting",
            activity="imports",
            pid=4711 + rank,
            host="node-a",
            memory_bytes=210 * 2**20,
        )
    if state in ENDED:
        how = {
            "finished": "exit code 0",
            "ended": "exit code not known",
            "stopped": "exit code 0",
            "failed": "exit code 1",
            "killed": "signal TERM",
            "lost": "not known",
        }
        full = replace(full, activity="", ended=how[state])
    return replace(full, **changes)


def outside_rank(rank: int = 0, state: str = "running", **changes: Any) -> RankFrame:
    """Return a rank that nobody prepared."""
    seen = RankFrame(
        rank=rank, state=state, activity="forward", pid=4711 + rank, host="node-a", heard_age_s=0.4, device="cpu",
        memory_bytes=(812 + 3 * rank) * 2**20, memory_total_bytes=16 * 2**30, cpu_percent=96.0 + rank,
        python_version="3.11", known_by=OUTSIDE, by_looks=LOOKS[rank % 2],
    )  # fmt: skip
    return replace(seen, **changes)


def outside_frame(state: str = "running", world: int = 2, **changes: Any) -> Frame:
    """Return a run that nobody prepared, in that state, of which nothing is known but what looks show."""
    began = NOW - 103.7
    seen = Frame(
        run="train-4710", state=state, program="train.py", world=world, at=NOW, device="cpu", launched=False,
        started_at=began, ended_at=NOW - 1 if state in ENDED else None, pid=4710, one_host="node-a", one_device="cpu",
        ranks=tuple(outside_rank(rank, state) for rank in range(world)), known_by=OUTSIDE,
        history=RecordedHistory(world),
        events=(EventLine(began, "an observer (pid 4800) watches this job, which nobody prepared", None, "info"),),
        by_looks=mean_of(LOOKS), named_from_share=0.15,
    )  # fmt: skip
    return replace(seen, **changes)


def frame(state: str = "running", world: int = 4, **changes: Any) -> Frame:
    """Return a run in that state."""
    began = NOW - 103.7
    starting = state == "starting"
    ranks = tuple(rank_frame(rank, state) for rank in range(world))
    events = (
        EventLine(began, "launched by torchrun 4710", None, "info"),
        EventLine(began + 3.1, "first step after 3.1 s", 0, "info"),
        EventLine(began + 60, "data loader is slow", 2, "warning"),
    )
    full = Frame(
        run="resnet-7f3a",
        state=state,
        program="resnet",
        world=world,
        at=NOW if not starting else began + 3.2,
        backend="gloo",
        device="cpu",
        placement="no GPU: gloo on the CPU, 1 thread a rank",
        note="synthetic data, not CIFAR-10",
        started_at=began,
        ended_at=NOW - 1 if state in ENDED else None,
        held_since=NOW - 12.4 if state in ("paused", "frozen") else None,
        step=None if starting else 1284,
        total_steps=4000,
        eta_s=None if starting else 372.0,
        step_ms=None if starting else 93.4,
        phases_ms=None if starting else {phase: share * 81.3 for phase, share in _SHARES.items()},
        samples_per_s=None if starting else 412.0,
        loss=None if starting else 0.8764,
        slowest=2 if state == "running" and world > 2 else None,
        pid=4710,
        one_host="node-a",
        one_device="cpu",
        exit_code={"finished": 0, "stopped": 0, "failed": 1, "killed": 143}.get(state),
        ranks=ranks,
        events=events[:1] if starting else events,
        history=RecordedHistory(world) if starting else _usual_history(world),
        logged=() if starting else ("accuracy", "lr"),
    )
    if state == "failed":
        full = replace(full, cause=f"rank {min(2, world - 1)}: ValueError: bad lr", cause_rank=min(2, world - 1))
        ranks = tuple(
            replace(rank, ended="exit code 1: ValueError: bad lr") if rank.rank == full.cause_rank else
            replace(rank, state="killed", ended="signal TERM from torchrun")
            for rank in full.ranks
        )  # fmt: skip
        full = replace(full, ranks=ranks)
    changed = replace(full, **changes)
    # No two of these are alike: the name of each stands for its id, too.
    return changed if "run_id" in changes else replace(changed, run_id=changed.run)


@cache
def _usual_history(world: int) -> RecordedHistory:
    # Of many ranks no test looks far back, and each of them would take its second to make up.
    return history_of(world, seconds=300 if world <= 16 else max(10, 4800 // world))


def verdict_frame() -> Frame:
    """Return a running group that one rank holds back."""
    text = "rank 2 holds the group back by 31 ms a step (38%): data loading, for 120 steps"
    verdict = Verdict(1, "slow", text, 0, rank=2, phase="data", cost_ms=31.0, share=0.38)
    return frame(verdicts=(verdict,))


def hung_frame(**changes: Any) -> Frame:
    """Return four ranks of which one does not come to a collective, with its timeout ahead."""
    hang = Hang(
        "not_entered", (1,), "train.py:31 main", "all_reduce 4 MiB, default group, 3 of 4 ranks, train.py:40",
        "record of collectives, stacks", True, int((NOW + 1742) * 1e9),
    )  # fmt: skip
    text = "rank 1 hangs: it sleeps; it never entered all_reduce 4 MiB, in which 3 ranks wait · train.py:31 main · 12 s"
    verdict = Verdict(3, "hang", text, int((NOW - 12) * 1e9), rank=1, hang=hang)
    ranks = tuple(rank_frame(rank, "stalled", step_age_s=12.0, stands=True) for rank in range(4))
    return replace(frame("stalled", verdicts=(verdict,), ranks=ranks, stands=True), **changes)


def history_of(world: int, seconds: int = 300, slow: int | None = 2, step_ms: float = 80.0) -> RecordedHistory:
    """Return what a run of `world` ranks left behind up to `NOW`: steps alike but for noise, one rank slow in data.

    At one moment all ranks hiccup; for the last third the slow rank is slow.
    """
    history = RecordedHistory(world)
    rng = random.Random(7)
    # A record for each quarter of a second is as good as all of them.
    for number in range(1, seconds * 4):
        end = NOW - seconds + number / 4
        hiccup = 400.0 if number == seconds * 2 else 0.0
        behind = 30.0 if number > seconds * 8 // 3 else 0.0
        for rank in range(world):
            own = step_ms * 0.8 * rng.uniform(0.97, 1.03) + hiccup + (behind if rank == slow else 0.0)
            wall = step_ms * 0.8 + behind + hiccup + 0.1 * step_ms
            history.take(
                rank, recorded(number, int(end * 1e9), own, wall, 2.4 * math.exp(-number / 900) + rng.random() / 9)
            )
            if not number % 4:
                memory = (812 + 3 * rank + number // 40) * 2**20
                history.take_memory(rank, int(end * 1e9), memory)
    history.catch_up()
    return history


def recorded(number: int, end_at_ns: int, own_ms: float, wall_ms: float, loss: float | None = None) -> Step:
    """Return the record of a step with two buckets of DDP at the end of its backward."""
    own, wall = round(own_ms * 1e6), round(max(own_ms, wall_ms) * 1e6)
    forward, backward, optimizer, other = 21_000_000, 27_000_000, 5_000_000, 3_000_000
    data = max(0, own - forward - backward - optimizer - other)
    ready = data + forward + backward
    calls = (
        Collective("all_reduce", ready - 9_000_000, wall - own + 9_000_000, 25 << 20, 1, group="0"),
        Collective("all_reduce", ready, wall - own + 1_000_000, 11 << 20, 2, group="0", estimated=True),
    )
    return Step(
        number, number, end_at_ns, wall, data, forward, backward, optimizer, wall - own, other, loss, 32, calls
    )  # fmt: skip


def frame_at(store: Store, now: float) -> Frame:
    """Move a store on to a moment, and return the frame of it."""
    store.advance(now)
    framer = Framer(store)
    run = framer.frame()
    return whole(run, all_ranks(framer), framer.hosts, unobserved_s=store.last_heard.missed_s(now))


class StillInspector:
    """Tells of each rank the same stack again and again, and notes how it was asked."""

    def __init__(self, world: int) -> None:
        self.stacks = Stacks(NOW, tuple(inspection(rank) for rank in range(world)))
        self.at_hang: Stacks | None = None
        """What was recorded of a hang."""
        self.refusal: str | None = None
        self.asked: list[bool] = []
        """For each question, whether frames of C and C++ were asked for."""
        self.holds = threading.Event()
        """Answers are held back until it is set."""
        self.holds.set()
        self.cancelled = False

    def recorded(self, since: float) -> Stacks | None:
        """Return what was recorded."""
        return self.at_hang if self.at_hang is not None and self.at_hang.at >= since else None

    def ask(
        self,
        ranks: Collection[int] | None = None,
        *,
        native: bool = False,
        heard: Callable[[int, int], None] = lambda heard, asked: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Stacks:
        """Answer, once it may."""
        self.asked.append(native)
        heard(0, len(self.stacks.inspections))
        while not self.holds.wait(0.01) and not self.cancelled:
            self.cancelled = cancelled()
        if self.refusal is not None:
            raise Refused(self.refusal)
        return self.stacks


class StillSource:
    """A source that always shows the frame it was given, and notes what it is asked."""

    def __init__(self, current: Frame) -> None:
        self.current = current
        self.asked: list[str] = []
        self.refusal: str | None = None
        self.watched: frozenset[int] = frozenset()
        self.watched_logs: frozenset[int] = frozenset()
        self.unholdable = False
        self.inspector = StillInspector(current.world)
        self.reported: Report | None = None
        self.kept: dict[str, list[Kept[Any]]] = {}

    @property
    def control(self) -> StillSource:
        """It notes what is done with the run, too."""
        return self

    def poll(self) -> None:
        """Nothing arrives."""

    def frame(self) -> Frame:
        """Return the frame."""
        return self.current

    def open(self, run: str) -> None:
        """Note it."""
        self.asked.append(f"open {run}")

    def report(self) -> Report:
        """Return the one that the test has given, in `reported`."""
        if self.reported is None:
            raise RunDirError("no report here")
        return self.reported

    def diagnoses(self, kind: str) -> list[Kept[Any]]:
        """Return those that the test has given for the kind, in `kept`."""
        return self.kept.get(kind, [])

    def watch(self, ranks: frozenset[int], logs: frozenset[int] = frozenset()) -> None:
        """Note whose steps are looked at, and whose logs."""
        self.watched, self.watched_logs = ranks, logs

    def pause(self, waiting: Waiting | None = None) -> str:
        """Hold, unless there is a reason not to."""
        return self._do("pause", "held at step 1,284 in 8 ms", "paused")

    def resume(self) -> str:
        """Go on."""
        return self._do("resume", "4 ranks go on", "running")

    def step(self, steps: int, waiting: Waiting | None = None) -> str:
        """Go on a little."""
        return self._do(f"step {steps}", f"held at step {1284 + steps:,} after {steps} steps", "paused")

    def join(self, waiting: Waiting | None = None) -> str:
        """See `Control`."""
        return self._do("join", "the agent has joined 4 ranks", "running")

    def leave(self, waiting: Waiting | None = None) -> str:
        """See `Control`."""
        return self._do("leave", "the agent has left 4 ranks", "running")

    def freeze(self) -> str:
        """Stop where it stands."""
        return self._do("freeze", "4 ranks got SIGSTOP", "frozen")

    def checkpoint(self, waiting: Waiting | None = None) -> str:
        """Save."""
        return self._do("checkpoint", "step 1,284 saved in /data/c.pt (0.2 s)", self.current.state)

    def diagnose(
        self,
        kind: str,
        waiting: Waiting | None = None,
        *,
        steps: int = 1,
        ranks: tuple[int, ...] | None = None,
        culprit: bool = False,
    ) -> str:
        """Diagnose."""
        said = f"{kind} {steps} {ranks} {culprit}"
        return self._do(said, f"/run/resnet-7f3a/{kind}/0001", self.current.state)

    def stop(self, waiting: Waiting | None = None, *, checkpoint: bool) -> str:
        """End in order."""
        return self._do(f"stop {checkpoint}", "stopped at step 1,284", "stopped")

    def kill(self, grace_s: float, aim: Aim, progress: Callable[[str], None], consent: Consent | None = None) -> str:
        """End, telling about it."""
        assert consent is None or consent.begin()
        progress("TERM to torchrun 4710")
        whom = aim.pid if isinstance(aim, Process) else aim
        return self._do(f"kill {whom} {grace_s:g}", "4 ranks and 8 helpers ended, 0 left", "killed")

    def signal(self, number: int, aim: Aim, consent: Consent | None = None) -> str:
        """Send."""
        whom = aim.pid if isinstance(aim, Process) else aim
        return self._do(f"signal {number} {whom}", f"signal {number} sent", self.current.state)

    def victims(self, aim: Aim) -> str:
        """Describe."""
        if isinstance(aim, Process):
            return f"process (pid {aim.pid}) alone"
        return "torchrun 4710, 4 ranks, 8 helpers" if aim is None else f"rank {aim} (pid {4711 + aim})"

    def processes(self) -> list[ProcessLine]:
        """Return torchrun, and each rank with two data workers."""
        lines = [ProcessLine(Process(4710, 1.0), "torchrun", None, "sleeping", 104.0, 1.2, 180 << 20, "torchrun")]
        for rank in range(self.current.world):
            ours = (
                ("rank", 4711 + rank, 96.4, 812 << 20),
                *(("data worker", 4800 + 2 * rank + n, 9.0, 300 << 20) for n in (0, 1)),
            )
            lines += [
                ProcessLine(Process(pid, 1.0), role, rank, "running", 100.0, cpu, memory, "python -m ddptop.agent")
                for role, pid, cpu, memory in ours
            ]
        return lines

    def resumable(self) -> bool:
        """Say yes."""
        return True

    def restart(self, *, resume: bool) -> str:
        """Start again."""
        return self._do(f"restart {resume}", "started again as resnet-7f3a.2", "starting")

    def close(self) -> None:
        """Note it."""
        self.asked.append("close")

    def _do(self, what: str, said: str, state: str) -> str:
        self.asked.append(what)
        if self.refusal is not None:
            raise (Unholdable if self.unholdable else Refused)(self.refusal)
        self.current = replace(self.current, state=state)
        return said


class MovingSource(StillSource):
    """A run of fake ranks that never stand still."""

    def __init__(self, world: int = 4, state: str = "running") -> None:
        super().__init__(frame(state, world))
        self._rng = random.Random(0)
        self._began = time.monotonic()

    def poll(self) -> None:
        """Move all ranks."""
        current, now = self.current, time.time()
        if current.state != "running":
            return
        steps = 1284 + int((time.monotonic() - self._began) / 0.08)
        ranks = tuple(self._move(rank, steps) for rank in current.ranks)
        self.current = replace(current, at=now, started_at=now - steps * 0.08, step=steps, ranks=ranks)

    def _move(self, rank: RankFrame, steps: int) -> RankFrame:
        new = [2.4 * math.exp(-steps / 900) + 0.3 + self._rng.uniform(-0.08, 0.08) for _ in range(3)]
        phases = {phase: value * self._rng.uniform(0.8, 1.2) for phase, value in (rank.phases_ms or {}).items()}
        return replace(
            rank,
            step=steps,
            step_age_s=self._rng.uniform(0, 0.1),
            losses=(*rank.losses, *new)[-240:],
            loss=new[-1],
            phases_ms=phases,
            step_ms=sum(phases.values()),
            cpu_percent=self._rng.uniform(80, 110),
        )


if __name__ == "__main__":
    from ddptop.tui.app.program import run_dashboard

    world = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    raise SystemExit(run_dashboard(MovingSource(world, sys.argv[2] if len(sys.argv) > 2 else "running")))
