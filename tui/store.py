"""The dashboard's model of one run: messages in, immutable frames out.

Pure: no sockets, no files, no clock of its own.  `apply` and its neighbours are the only
writers; everything on the screen, in `status --json` and in the plain output comes from
`frame`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ddptop.agent import wire
from ddptop.agent.rundir import Member, Run
from ddptop.agent.text import clean
from ddptop.tui.collectives import Alignment
from ddptop.tui.frame import ENDED, EventLine, Frame, RankFrame, Ranks, Restart, Verdict
from ddptop.tui.rankmodel import DEFAULT, RankModel
from ddptop.tui.settings import Thresholds
from ddptop.tui.totals import Totals, add_up
from ddptop.tui.verdict import Judge

if TYPE_CHECKING:
    from ddptop.tui.past import Past

EVENTS = 500
ALL_IN_SIGHT = 8
"""In a larger group not every rank is drawn in every picture."""
RENEWED_S = 1.0
"""The numbers of a group that sends summaries are added up no more often than this."""
_ACTED = frozenset({"running", "pausing", "paused", "frozen"})
"""States that a run is moved between by actions, each of which is an event of its own."""
KEPT = 0.7
"""A verdict once told stays down to this part of the share from which it is told."""


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

    def __init__(
        self,
        run: Run,
        logs: Mapping[int, str] | None = None,
        thresholds: Thresholds = DEFAULT,
        past: Past | None = None,
        *,
        brief: bool = False,
    ) -> None:
        """Know nothing yet; `brief` where only the ranks that are watched send their records."""
        self._run = run
        self._thresholds = thresholds
        self._brief = brief
        self._logs = logs or {}
        """Where each rank's output goes, where it goes to a file."""
        self.past = past
        """Where somebody looks back."""
        self._judge = Judge(run.world)
        self._alignment = Alignment(run.world)
        self._ranks = {rank: self._new_rank(rank) for rank in range(run.world)}
        self._watched: frozenset[int] = frozenset()
        self._round: dict[int, wire.Summary] = {}
        """By rank, what came since the verdict was last asked."""
        self._totals: tuple[float, Totals] | None = None
        """Of the group, and when they were added up."""
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
            text = f"faults are put into this run on purpose: {run.injected}"
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
                if self.past is not None:
                    self.past.beat(message)
            case wire.Steps(rank, steps, generation):
                self._follow(generation, now)
                model = self._ranks.get(rank)
                if model is None:
                    self.refused += 1
                    return
                if generation == self._generation:
                    model.take(steps)
                    model.heard_at = now
            case wire.Summary():
                self._follow(message.generation, now)
                model = self._ranks.get(message.rank)
                if model is None:
                    self.refused += 1
                    return
                if message.generation == self._generation:
                    if model.take_summary(message) and self._brief:
                        self._take_round(message)
                    model.heard_at = now
            case wire.Event(at_ns, text, rank, level):
                self._add(EventLine(at_ns / 1e9, text, rank, level))
            case wire.RunState():
                self._group = message

    def recall(self, recorded: wire.Steps, now: float) -> None:
        """Take in recorded steps, of which earlier ones may have been left out."""
        self._follow(recorded.generation, now)
        if recorded.generation == self._generation:
            self.fill(recorded.rank, recorded.steps, last=False)

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
            if self.past is not None:
                self.past.history.forget(hello.rank)
        model.hello, model.heard_at = hello, now

    def _follow(self, generation: int, now: float) -> None:
        """Begin with the ranks of a new generation, where this is one: torchrun has started all of them anew."""
        if generation <= self._generation:
            return
        # Every rank's curve goes on from the same step, however far each had come.
        last = max(model.last_step for model in self._ranks.values())
        self._ranks = {rank: model.successor(last) for rank, model in self._ranks.items()}
        if self.past is not None:
            self.past.history.count_on(last)
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
        self._round.clear()
        if self.past is not None:
            self.past.restart()

    def _new_rank(self, rank: int) -> RankModel:
        model = RankModel(rank, self._record, self._thresholds)
        model.brief = self._brief
        return model

    def _record(self, rank: int, steps: Sequence[wire.Step], sampled: bool) -> None:
        past = self.past
        if past is not None and sampled and not self._brief:
            past.take_samples(rank, steps)
        elif past is not None:
            for step in steps:
                if self._brief:
                    past.steps.take(rank, step)
                else:
                    past.take(rank, step)
        if not sampled and not self._brief:
            for step in steps:
                self._judge.take(rank, step)
                self._alignment.take(rank, step)

    def _take_round(self, summary: wire.Summary) -> None:
        """Take in a summary; when there is one of every rank, let them count as one step of the group."""
        if self.past is not None:
            self.past.take_summary(summary)
        self._round[summary.rank] = summary
        if len(self._round) == len(self._ranks):
            number = min(each.step for each in self._round.values())
            for rank, each in self._round.items():
                self._judge.take(rank, _typical_step(each, number))
            self._round.clear()

    def heard(self, now: float, within_s: float) -> frozenset[int]:
        """Return the ranks that something came from lately."""
        return frozenset(
            rank
            for rank, model in self._ranks.items()
            if model.heard_at is not None and 0 <= now - model.heard_at < within_s
        )

    def watch(self, ranks: frozenset[int]) -> None:
        """Expect the records of these ranks, and of all others summaries alone."""
        for rank in self._watched ^ ranks:
            if rank in self._ranks:
                self._ranks[rank].watch(rank in ranks)
        self._watched = ranks

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
        expected = self._watched & self._ranks.keys() if self._brief else self._ranks
        return {rank: gap for rank in expected if (gap := self._ranks[rank].gap) is not None}

    def fill(self, rank: int, steps: Iterable[wire.Step], *, last: bool) -> None:
        """Take in records that were asked for; `last` when no more of them will come."""
        if rank in self._ranks:
            self._ranks[rank].fill(steps, last=last)

    def frame(self, now: float) -> Frame:
        """Return the picture of this moment."""
        own = {rank: model.state(now) for rank, model in self._ranks.items()}
        state = self._run_state(own)
        _, culprit = self._cause()
        shown = {each: _in_context(each, state, False) for each in set(own.values())}
        states = {rank: shown[each] for rank, each in own.items()}
        if culprit in own:
            states[culprit] = _in_context(own[culprit], state, True)
        self._note_changes(now, state, states)
        hosts = {model.member.host for model in self._ranks.values() if model.member is not None}

        def draw(rank: int) -> RankFrame:
            return self._ranks[rank].frame(
                now,
                states[rank],
                self._logs.get(rank),
                # The clocks of two machines are not the same to a millisecond.
                exchange=self._alignment.means_ms(rank) if len(hosts) < 2 else None,
            )

        ranks: Sequence[RankFrame]
        if len(self._ranks) > ALL_IN_SIGHT:
            ranks = Ranks(len(self._ranks), draw, lambda field: self._tell(field, now, states))
        else:
            ranks = tuple(draw(rank) for rank in self._ranks)
        return self._picture(now, state, ranks)

    def _tell(self, field: str, now: float, states: Mapping[int, str]) -> Sequence[Any] | None:
        """Return a field of all ranks as their frames would have it; None for one that is not at hand."""
        models = self._ranks.values()
        match field:
            case "rank":
                return list(self._ranks)
            case "state":
                return list(states.values())
            case "step":
                return [model.step for model in models]
            case "health":
                return [None if model.beat is None else model.beat.health for model in models]
            case "step_age_s":
                return [model.age(now) for model in models]
            case "heard_age_s":
                return [model.heard_age(now) for model in models]
        return None

    def _added_up(self, now: float) -> Totals:
        """Return the numbers of the group; with summaries once a second they need not be newer."""
        if self._totals is None or not self._brief or not 0 <= now - self._totals[0] < RENEWED_S:
            self._totals = now, add_up(self._ranks.values(), self._thresholds.slowest_factor)
        return self._totals[1]

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
        live = set(ranks.values()) - ENDED
        if not live:
            # All scripts have ended; how the run ended is for torchrun to say.
            return self._state or "starting"
        if "paused" in live:
            return "paused" if len(live) == 1 else "pausing"
        for state in ("running", "stalled", "silent"):
            if state in live:
                return state
        return "starting"

    def _note_changes(self, now: float, state: str, ranks: Mapping[int, str]) -> None:
        # Before anybody is heard nothing is known: a run that is met in full swing did not begin now.
        unheard = state == "starting" and all(model.beat is None for model in self._ranks.values())
        if state != self._state and not unheard:
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
        if ranks != self._rank_states:
            for rank, each in ranks.items():
                before = self._rank_states.get(rank)
                if before not in (None, each) and each in ("silent", "stalled"):
                    self._add(EventLine(now, f"rank {rank} is {each}", rank, _level(each)))
            self._rank_states = dict(ranks)
        self._note_verdict(now)

    def _note_verdict(self, now: float) -> None:
        """Tell of a change of verdict once; its numbers may go on changing."""
        before, verdict = self._verdict, self._worth_telling(self._judge.verdict)
        if self._state in ENDED:
            # Found in the recording of what is over: nothing that happens now.
            now -= min(
                (age for age in (model.age(now) for model in self._ranks.values()) if age is not None), default=0
            )
        if verdict is not None and (before is None or _accused(before) != _accused(verdict)):
            self._add(EventLine(now, verdict.text, verdict.rank, "warning"))
        elif verdict is None and before is not None:
            self._add(EventLine(now, f"no longer: {before.text}", before.rank, "info"))
        self._verdict = verdict

    def _worth_telling(self, verdict: Verdict | None) -> Verdict | None:
        """Leave out what costs too little; what is told already stays for somewhat less, lest it comes and goes."""
        if verdict is None or verdict.share is None:
            return verdict
        told = self._verdict is not None and _accused(self._verdict) == _accused(verdict)
        return verdict if verdict.share >= self._thresholds.verdict_share * (KEPT if told else 1) else None

    def _telling(self, state: str) -> str:
        if state in ENDED:
            code = self._run.exit_code
            return f"run {state}" + (f", exit code {code}" if code is not None else "")
        return state

    def _add(self, event: EventLine) -> None:
        self._events.append(event)

    def _picture(self, now: float, state: str, ranks: Sequence[RankFrame]) -> Frame:
        run, live, totals = self._run, self._liveness, self._added_up(now)
        step, total, step_ms = totals.step, totals.total_steps, totals.step_ms
        beats = [model.beat for model in self._ranks.values() if model.beat is not None]
        moving = state in ("running", "pausing", "stalled")
        cause, cause_rank = self._cause()
        return Frame(
            run=run.run,
            state=state,
            program=clean(run.program, 200),
            world=run.world,
            at=now,
            backend=run.backend or totals.backend,
            device=run.device or totals.device,
            placement=run.placement,
            injected=run.injected or None,
            note=totals.note,
            started_at=run.created_at_ns / 1e9,
            ended_at=None if run.ended_at_ns is None else run.ended_at_ns / 1e9,
            held_since=self._held(state, beats),
            step=step,
            total_steps=total,
            eta_s=(total - step) * step_ms / 1e3 if moving and total and step is not None and step_ms else None,
            step_ms=step_ms,
            phases_ms=totals.phases_ms,
            samples_per_s=totals.samples_per_s if moving else None,
            loss=totals.loss,
            slowest=totals.slowest,
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
            past=self.past,
            logged=frozenset().union(*(model.metrics for model in self._ranks.values())),
            refused=self.refused + totals.refused + (self._group.refused if self._group is not None else 0),
            outstanding=sum(
                model.beat.outstanding
                for rank, model in self._ranks.items()
                if model.beat is not None and self._rank_states[rank] not in ENDED
            ),
            checkpoints=any(beat.checkpoints for beat in beats),
            timeout_s=min((beat.timeout_s for beat in beats if beat.timeout_s is not None), default=None),
            ending=self._countdown or (self._group.ending if self._group is not None else ""),
            restarts=self._restarts,
            max_restarts=run.max_restarts,
            placed=any(beat.coordinates for beat in beats),
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
            return self._run.cause, self._run.cause_rank
        if self._liveness is not None and self._liveness.cause is not None:
            return self._liveness.cause, self._liveness.cause_rank
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


def _typical_step(summary: wire.Summary, number: int) -> wire.Step:
    """Return a record of a step like those of a summary."""
    return wire.Step(
        seq=summary.number,
        step=number,
        end_at_ns=summary.end_at_ns,
        wall_ns=summary.wall_ns,
        data_ns=summary.data_ns,
        forward_ns=summary.forward_ns,
        backward_ns=summary.backward_ns,
        optimizer_ns=summary.optimizer_ns,
        wait_ns=summary.wait_ns,
        other_ns=summary.other_ns,
        loss=summary.loss,
        samples=None if summary.samples is None else round(summary.samples),
        starved_ns=summary.starved_ns,
    )
