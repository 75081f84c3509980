"""The dashboard's model of one run: messages in, immutable frames out.

Pure: no sockets, no files, no clock of its own.  `apply` and its neighbours are the only
writers; everything on the screen, in `status --json` and in the plain output comes from
`frame`.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ddptop.agent import wire
from ddptop.agent.rundir import Member, Run
from ddptop.tui.collectives import Alignment
from ddptop.tui.frame import ENDED, EventLine, Frame, RankFrame, Restart, Verdict
from ddptop.tui.rankmodel import RankModel
from ddptop.tui.units import clean
from ddptop.tui.verdict import Judge

EVENTS = 500
_ACTED = frozenset({"running", "pausing", "paused", "frozen"})
"""States that a run is moved between by actions, each of which is an event of its own."""
STANDS_OUT = 1.15
"""A rank is called the slowest where its own time is this many times the group's median."""


@dataclass(frozen=True)
class Liveness:
    """Who of a run is alive, as the process table says."""

    state: str
    supervised: bool
    orphaned: bool
    alive: frozenset[int]
    """Ranks whose process runs."""
    cause: str | None = None
    cause_rank: int | None = None
    frozen_at: float | None = None
    """When its processes were stopped where they stood, in seconds since the epoch; None where they are not."""


class Store:
    """Everything known of one run."""

    def __init__(self, run: Run, logs: Mapping[int, str] | None = None) -> None:
        self._run = run
        self._logs = logs or {}
        """Where each rank's output goes, where it goes to a file."""
        self._judge = Judge(run.world)
        self._alignment = Alignment(run.world)
        self._ranks = {rank: RankModel(rank, self._record) for rank in range(run.world)}
        self._events: deque[EventLine] = deque(maxlen=EVENTS)
        self._group: wire.RunState | None = None
        self._liveness: Liveness | None = None
        self._state: str | None = None
        self._rank_states: dict[int, str] = {}
        self._held_since: float | None = None
        self._verdict: Verdict | None = None
        self._generation = 0
        self._restarts: tuple[Restart, ...] = ()
        self._countdown = ""
        self.refused = 0
        """Messages that could not be read here."""
        if run.injected:
            text = f"faults are put into this run on purpose: {clean(run.injected, 300)}"
            self._add(EventLine(run.created_at_ns / 1e9, text, None, "warning"))

    def apply(self, message: wire.Telemetry, now: float) -> None:
        """Take in one message from a rank or the supervisor."""
        match message:
            case wire.Hello():
                self._greet(message, now)
            case wire.Beat():
                model = self._ranks.get(message.rank)
                if model is None:
                    self.refused += 1
                    return
                model.beat, model.heard_at = message, now
                self._judge.beat(message)
            case wire.Steps(rank, steps, generation):
                self._follow(generation, now)
                model = self._ranks.get(rank)
                if model is None:
                    self.refused += 1
                    return
                if generation == self._generation:
                    model.take(steps)
                    model.heard_at = now
            case wire.Event(at_ns, text, rank, level):
                self._add(EventLine(at_ns / 1e9, clean(text, 400), rank, level))
            case wire.RunState():
                self._group = message

    def _greet(self, hello: wire.Hello, now: float) -> None:
        model = self._ranks.get(hello.rank)
        if model is None or hello.run_id != self._run.run_id:
            self.refused += 1
            return
        self._follow(hello.generation, hello.started_at_ns / 1e9)
        if hello.generation != self._generation:
            return
        model = self._ranks[hello.rank]
        if hello.protocol != wire.PROTOCOL and model.hello is None:
            text = (
                f"rank {hello.rank} speaks protocol {hello.protocol}, this dashboard {wire.PROTOCOL}: update the older"
            )
            self._add(EventLine(now, text, hello.rank, "warning"))
        if model.hello is not None and model.hello.started_at_ns != hello.started_at_ns:
            # A new process in the old one's place: its numbers begin anew.
            self._ranks[hello.rank] = model = model.successor(0)
            self._begin_anew()
        model.hello, model.heard_at = hello, now

    def _follow(self, generation: int, now: float) -> None:
        """Begin with the ranks of a new generation, where this is one: torchrun has started all of them anew."""
        if generation <= self._generation:
            return
        # Every rank's curve goes on from the same step, however far each had come.
        last = max(model.last_step for model in self._ranks.values())
        self._ranks = {rank: model.successor(last) for rank, model in self._ranks.items()}
        self._generation = generation
        self._restarts += (Restart(generation, now, last),)
        self._rank_states = {}
        self._begin_anew()
        if not self._run.launched:
            # No supervisor tells of it.
            self._add(EventLine(now, f"restart {generation}: all ranks were started anew", None, "warning"))

    def _begin_anew(self) -> None:
        self._judge.restart()
        self._alignment = Alignment(self._run.world)

    def _record(self, rank: int, step: wire.Step) -> None:
        self._judge.take(rank, step)
        self._alignment.take(rank, step)

    def know_run(self, run: Run) -> None:
        """Take in the run's record."""
        self._run = run

    def know_members(self, members: Mapping[int, Member]) -> None:
        """Take in the ranks' records."""
        for rank, member in members.items():
            if rank in self._ranks:
                self._ranks[rank].member = member
                if member.generation > self._generation:
                    # What its predecessor said last tells nothing of it.
                    self._ranks[rank].beat = None

    def count_down(self, line: str) -> None:
        """Take in who is left of an ending that goes on here, without a supervisor; from any thread."""
        self._countdown = line

    def know_liveness(self, liveness: Liveness) -> None:
        """Take in what the process table says."""
        self._liveness = liveness
        for rank, model in self._ranks.items():
            if model.member is not None:
                model.alive = rank in liveness.alive

    def gaps(self) -> dict[int, int]:
        """Return, by rank, the number of the first record that is missing."""
        return {rank: model.gap for rank, model in self._ranks.items() if model.gap is not None}

    def fill(self, rank: int, steps: Iterable[wire.Step], *, last: bool) -> None:
        """Take in records that were asked for; `last` when no more of them will come."""
        if rank in self._ranks:
            self._ranks[rank].fill(steps, last=last)

    def frame(self, now: float) -> Frame:
        """Return the picture of this moment."""
        own = {rank: model.state(now) for rank, model in self._ranks.items()}
        state = self._run_state(own)
        _, culprit = self._cause()
        states = {rank: _in_context(each, state, rank == culprit) for rank, each in own.items()}
        self._note_changes(now, state, states)
        hosts = {model.member.host for model in self._ranks.values() if model.member is not None}
        ranks = tuple(
            # The clocks of two machines are not the same to a millisecond.
            model.frame(
                now,
                states[rank],
                self._logs.get(rank),
                exchange=self._alignment.means_ms(rank) if len(hosts) < 2 else None,
            )
            for rank, model in self._ranks.items()
        )
        return self._picture(now, state, ranks)

    def _run_state(self, ranks: Mapping[int, str]) -> str:
        recorded = self._run.state
        if recorded in ENDED:
            return recorded
        if self._group is not None and (self._group.state in ENDED or self._group.state == "killing"):
            return self._group.state
        if self._liveness is not None and self._liveness.state in ENDED:
            return self._liveness.state
        if self._liveness is not None and self._liveness.frozen_at is not None:
            return "frozen"
        live = [state for state in ranks.values() if state not in ENDED]
        if not live:
            # All scripts have ended; how the run ended is for torchrun to say.
            return self._state or "starting"
        if all(state == "paused" for state in live):
            return "paused"
        if any(state == "paused" for state in live):
            return "pausing"
        for state in ("running", "stalled", "silent"):
            if state in live:
                return state
        return "starting"

    def _note_changes(self, now: float, state: str, ranks: Mapping[int, str]) -> None:
        if state != self._state:
            if state == "paused":
                self._held_since = now
            elif state in ("running", "starting") or state in ENDED:
                self._held_since = None
            # What a supervisor sees it tells itself, with the reason.
            told = (self._run.launched and (state in ENDED or state == "killing")) or _ACTED.issuperset(
                {state, self._state}
            )
            if self._state is not None and not told:
                self._add(EventLine(now, self._telling(state), None, _level(state)))
            self._state = state
        for rank, each in ranks.items():
            before = self._rank_states.get(rank)
            if before not in (None, each) and each in ("silent", "stalled"):
                self._add(EventLine(now, f"rank {rank} is {each}", rank, _level(each)))
        self._rank_states = dict(ranks)
        self._note_verdict(now)

    def _note_verdict(self, now: float) -> None:
        """Tell of a change of verdict once; its numbers may go on changing."""
        before, verdict = self._verdict, self._judge.verdict
        if verdict is not None and (before is None or _accused(before) != _accused(verdict)):
            self._add(EventLine(now, verdict.text, verdict.rank, "warning"))
        elif verdict is None and before is not None:
            self._add(EventLine(now, f"no longer: {before.text}", before.rank, "info"))
        self._verdict = verdict

    def _telling(self, state: str) -> str:
        if state in ENDED:
            code = self._run.exit_code
            return f"run {state}" + (f", exit code {code}" if code is not None else "")
        return state

    def _add(self, event: EventLine) -> None:
        self._events.append(event)

    def _picture(self, now: float, state: str, ranks: tuple[RankFrame, ...]) -> Frame:
        run, live = self._run, self._liveness
        beats = [model.beat for model in self._ranks.values() if model.beat is not None]
        step = min((rank.step for rank in ranks if rank.step is not None), default=None)
        if any(rank.step is None for rank in ranks):
            step = None
        total = max((beat.total_steps for beat in beats if beat.total_steps is not None), default=None)
        step_ms = max((rank.step_ms for rank in ranks if rank.step_ms is not None), default=None)
        moving = state in ("running", "pausing", "stalled")
        cause, cause_rank = self._cause()
        losses = [rank.loss for rank in ranks if rank.loss is not None]
        return Frame(
            run=run.run,
            state=state,
            program=clean(run.program, 200),
            world=run.world,
            at=now,
            backend=run.backend or _first(beat.backend for beat in beats),
            device=run.device or _first(beat.device for beat in beats),
            placement=clean(run.placement, 200),
            injected=clean(run.injected, 300) or None,
            note=_first(clean(beat.note, 200) for beat in beats if beat.note is not None),
            started_at=run.created_at_ns / 1e9,
            ended_at=None if run.ended_at_ns is None else run.ended_at_ns / 1e9,
            held_since=self._held(state, beats),
            step=step,
            total_steps=total,
            eta_s=(total - step) * step_ms / 1e3 if moving and total and step is not None and step_ms else None,
            step_ms=step_ms,
            phases_ms=_mean_phases(ranks),
            samples_per_s=_sum(rank.samples_per_s for rank in ranks) if moving else None,
            loss=sum(losses) / len(losses) if losses else None,
            slowest=_slowest(ranks),
            torchrun_pid=run.torchrun.pid if run.torchrun is not None else None,
            supervised=live.supervised if live is not None else True,
            orphaned=live.orphaned if live is not None else False,
            launched=run.launched,
            exit_code=run.exit_code,
            cause=cause,
            cause_rank=cause_rank,
            ranks=ranks,
            events=tuple(self._events),
            verdict=self._verdict,
            refused=self.refused
            + sum(rank.refused for rank in ranks)
            + (self._group.refused if self._group is not None else 0),
            outstanding=sum(rank.outstanding for rank in ranks if rank.state not in ENDED),
            checkpoints=any(beat.checkpoints for beat in beats),
            timeout_s=min((beat.timeout_s for beat in beats if beat.timeout_s is not None), default=None),
            ending=self._countdown or (clean(self._group.ending, 200) if self._group is not None else ""),
            restarts=self._restarts,
            max_restarts=run.max_restarts,
        )

    def _held(self, state: str, beats: list[wire.Beat]) -> float | None:
        """Return since when all are held: the ranks' own word, else since it was seen here."""
        if state == "frozen":
            return None if self._liveness is None else self._liveness.frozen_at
        if state != "paused":
            return None
        told = [beat.held_at_ns for beat in beats if beat.held_at_ns is not None]
        return max(told) / 1e9 if told else self._held_since

    def _cause(self) -> tuple[str | None, int | None]:
        if self._run.cause is not None:
            return clean(self._run.cause, 400), self._run.cause_rank
        if self._liveness is not None and self._liveness.cause is not None:
            return clean(self._liveness.cause, 400), self._liveness.cause_rank
        return None, None


def _in_context(rank: str, run: str, culprit: bool) -> str:
    """Return a rank's state as the run's explains it.

    After a kill a vanished rank was killed; after a failure too, by torchrun, unless it was the first to go.
    """
    if rank == "lost" and run in ("killed", "killing", "failed"):
        return "failed" if culprit else "killed"
    if rank == "finished" and run == "stopped":
        return run
    if run == "frozen" and rank not in ENDED:
        return run
    if rank in ("starting", "running", "paused", "silent", "stalled") and run in ENDED:
        return run
    return rank


def _level(state: str) -> str:
    return {"failed": "error", "lost": "error", "silent": "warning", "stalled": "warning"}.get(state, "info")


def _accused(verdict: Verdict) -> tuple[str, int | None, str | None]:
    return verdict.kind, verdict.rank, verdict.phase


def _first(values: Iterable[str | None]) -> str | None:
    return next((value for value in values if value), None)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mean_phases(ranks: Iterable[RankFrame]) -> dict[str, float] | None:
    known = [rank.phases_ms for rank in ranks if rank.phases_ms is not None]
    if not known:
        return None
    common = [phase for phase in wire.PHASES if all(phase in phases for phases in known)]
    return {phase: statistics.fmean(phases[phase] for phases in known) for phase in common}


def _slowest(ranks: Iterable[RankFrame]) -> int | None:
    """Return the rank with the largest time of its own, without waiting, if it stands out."""
    own = {
        rank.rank: rank.step_ms - rank.phases_ms["wait"]
        for rank in ranks
        if rank.step_ms is not None and rank.phases_ms is not None and "wait" in rank.phases_ms
    }
    if len(own) < 2:
        return None
    slowest = max(own, key=own.__getitem__)
    others = [value for rank, value in own.items() if rank != slowest]
    return slowest if own[slowest] > STANDS_OUT * statistics.median(others) else None
