"""The dashboard's model of one run: messages in, immutable frames out.

Pure: no sockets, no files, no clock of its own.  `apply` and its neighbours write what is told;
`frame` writes too: what it finds to have changed since the frame before becomes an event.
Everything on the screen, in `status --json` and in the plain output comes from `frame`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ddptop.agent import wire
from ddptop.agent.run import generations, states
from ddptop.agent.run.identity import Row
from ddptop.agent.run.rundir import Member, Run
from ddptop.agent.text import clean
from ddptop.tui.model.collectives import Alignment
from ddptop.tui.model.frame import ENDED, EventLine, Frame, RankFrame, Ranks, Restart, Verdict
from ddptop.tui.model.group import Totals, add_up
from ddptop.tui.model.judge.verdict import Judge
from ddptop.tui.model.rank import DEFAULT, RankModel
from ddptop.tui.settings import Thresholds

if TYPE_CHECKING:
    from ddptop.tui.model.history.history import History

EVENTS = 500
ALL_IN_SIGHT = 8
"""In a larger group not every rank is drawn in every frame."""
RENEWED_S = 1.0
"""The numbers of a group that sends summaries are added up no more often than this."""
_ACTED = frozenset({"running", "pausing", "paused", "frozen"})
"""States that a run is moved between by actions, each of which is an event of its own."""
REMAINING_SHARE = 0.7
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
    seen: Mapping[int, Row] = field(default_factory=dict)
    """By rank, how its process is, for those whose processes were looked at."""
    at: float | None = None
    """When that was, in seconds since the epoch."""


class Store:
    """Everything known of one run."""

    def __init__(
        self,
        run: Run,
        logs: Mapping[int, str] | None = None,
        thresholds: Thresholds = DEFAULT,
        history: History | None = None,
        *,
        brief: bool = False,
    ) -> None:
        """Know nothing yet; `brief` where only the ranks that are watched send their records."""
        self._run = run
        self._thresholds = thresholds
        self._brief = brief
        self._logs = logs or {}
        """Where each rank's output goes, where it goes to a file."""
        self.history = history
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
        self._newest = 0
        """The newest generation that is known of, by the ranks' records or by their word: its steps may come later."""
        self._recorded = False
        """The ranks' records are known: what no record says yet, no rank begins by its word alone."""
        self._early: dict[int, wire.Hello] = {}
        """By rank, a greeting that came before the record of its generation was read; it comes once."""
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
                self._greet(message, now, heard=True)
            case wire.Beat():
                if message.generation is not None:
                    self._follow(message.generation, now)
                model = self._ranks.get(message.rank)
                if model is None:
                    self.refused += 1
                    return
                if message.generation is not None and message.generation != self._newest:
                    # Late, of a process that another one has taken the place of.
                    return
                if not self._is_possible(message.seq, now):
                    return
                model.beat, model.heard_at, model.met = message, now, True
                self._judge.beat(message)
                if self.history is not None:
                    self.history.beat(message)
            case wire.Steps(rank, steps, generation):
                self._follow(generation, now)
                model = self._ranks.get(rank)
                if model is None:
                    self.refused += 1
                    return
                if generation == self._generation and all(self._is_possible(step.seq, now) for step in steps):
                    model.take(steps)
                    model.heard_at = now
            case wire.Summary():
                self._follow(message.generation, now)
                model = self._ranks.get(message.rank)
                if model is None:
                    self.refused += 1
                    return
                if message.generation == self._generation and self._is_possible(message.number, now):
                    if model.take_summary(message) and self._brief:
                        self._take_round(message)
                    model.heard_at = now
            case wire.Event(at_ns, text, rank, level):
                self._add(EventLine(at_ns / 1e9, text, rank, level))
            case wire.RunState():
                self._group = message

    def recall(self, recorded: wire.Telemetry, now: float) -> None:
        """Take in what is recorded: steps, of which earlier ones may have been left out, events, and of each rank who
        it was and how it was last. What a rank has said itself meanwhile is newer.
        """
        match recorded:
            case wire.Steps():
                self._follow(recorded.generation, now)
                if recorded.generation == self._generation and recorded.rank in self._ranks:
                    self._ranks[recorded.rank].recall(recorded.steps)
            case wire.Hello():
                model = self._ranks.get(recorded.rank)
                if model is None or model.hello is None or recorded.generation > self._generation:
                    self._greet(recorded, now, heard=False)
            case wire.Beat():
                self._recall_beat(recorded)
            case _:
                self.apply(recorded, now)

    def _recall_beat(self, beat: wire.Beat) -> None:
        at = beat.at_ns / 1e9
        if beat.generation is not None:
            self._follow(beat.generation, at)
        model = self._ranks.get(beat.rank)
        if model is None or model.beat is not None:
            return
        if beat.generation is None:
            # Of an agent that does not tell: it is the present process's if that was there by then.
            began = None if model.hello is None else model.hello.started_at_ns
            if beat.at_ns < began if began is not None else self._newest > 0:
                return
        elif beat.generation != self._newest:
            return
        model.beat, model.heard_at = beat, max(at, model.heard_at or at)
        if self.history is not None:
            self.history.beat(beat)

    def _greet(self, hello: wire.Hello, now: float, *, heard: bool) -> None:
        model = self._ranks.get(hello.rank)
        if model is None or hello.run_id != self._run.run_id:
            self.refused += 1
            return
        if heard and self._generation < hello.generation <= generations.most(self._run, self._newest):
            self._early[hello.rank] = hello
        self._follow(hello.generation, hello.started_at_ns / 1e9)
        if hello.generation != self._generation:
            return
        for early in [early for rank, early in self._early.items() if rank != hello.rank]:
            if early.generation == self._generation:
                del self._early[early.rank]
                self._greet(early, early.started_at_ns / 1e9, heard=False)
        self._early.pop(hello.rank, None)
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
            if self.history is not None:
                self.history.by_step.forget(hello.rank)
        model.hello = hello
        if heard:
            model.heard_at = now

    def _follow(self, generation: int, now: float) -> None:
        """Begin with the ranks of a new generation, where this is one: torchrun has started all of them anew."""
        if generation <= self._generation:
            return
        if generation > generations.most(self._run, self._newest):
            self.refused += 1
            return
        if generation > self._newest and self._recorded:
            # Its record has not been read yet, or says something else; on a full disk there is none.
            said = sum(hello.generation == generation for hello in self._early.values())
            if 2 * said <= self._run.world:
                return
        if generation > self._newest:
            self._expect(generation)
        # Every rank's curve goes on from the same step, however far each had come.
        last = max(model.last_step for model in self._ranks.values())
        self._ranks = {rank: model.successor(last) for rank, model in self._ranks.items()}
        if self.history is not None:
            self.history.by_step.count_on(last)
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
        if self.history is not None:
            self.history.restart()

    def _new_rank(self, rank: int) -> RankModel:
        model = RankModel(rank, self._record, self._thresholds)
        model.brief = self._brief
        return model

    def _record(self, rank: int, steps: Sequence[wire.Step], sampled: bool) -> None:
        history = self.history
        if history is not None and sampled and not self._brief:
            history.take_samples(rank, steps)
        elif history is not None:
            for step in steps:
                if self._brief:
                    history.steps.take(rank, step)
                else:
                    history.take(rank, step)
        if not sampled and not self._brief:
            for step in steps:
                self._judge.take(rank, step)
                self._alignment.take(rank, step)

    def _take_round(self, summary: wire.Summary) -> None:
        """Take in a summary; when there is one of every rank, let them count as one step of the group."""
        if self.history is not None:
            self.history.take_summary(summary)
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
            if model.met and model.heard_at is not None and 0 <= now - model.heard_at < within_s
        )

    def unmet(self) -> frozenset[int]:
        """Return the live ranks that are only known from records: they have not been heard here."""
        return frozenset(
            rank
            for rank, model in self._ranks.items()
            if model.member is not None and model.member.ended is None and model.alive is not False and not model.met
        )

    def watch(self, ranks: frozenset[int]) -> None:
        """Expect the records of these ranks, and of all others summaries alone."""
        for rank in self._watched ^ ranks:
            if rank in self._ranks:
                self._ranks[rank].watch(rank in ranks)
        self._watched = ranks

    def know_run(self, run: Run) -> None:
        """Take in the run's record; its number of ranks is the one that everything here was made for."""
        self._run = run if run.world == self._run.world else msgspec.structs.replace(run, world=self._run.world)

    def know_members(self, members: Mapping[int, Member]) -> None:
        """Take in the ranks' records."""
        newest = max((member.generation for member in members.values()), default=0)
        self._recorded = self._recorded or bool(members)
        if members and newest < self._newest:
            self._fall_back(newest)
        self._expect(newest)
        for rank, member in members.items():
            if rank in self._ranks and member.generation == self._newest:
                self._ranks[rank].member = member
                early = self._early.get(rank)
                if early is not None and early.generation == member.generation:
                    self._greet(self._early.pop(rank), early.started_at_ns / 1e9, heard=True)

    def _is_possible(self, seq: int, now: float) -> bool:
        """Say whether a rank can have done so many steps; one that says more is not heard in this."""
        possible = generations.can_reach(seq, now - self._run.created_at_ns / 1e9)
        self.refused += not possible
        return possible

    def _fall_back(self, generation: int) -> None:
        """Go back to a generation: whoever had claimed a newer one was alone with that."""
        self._newest = generation
        if self._generation > generation:
            self._generation = generation
            self._restarts = tuple(each for each in self._restarts if each.generation <= generation)
            self._ranks = {rank: model.successor(model.last_step) for rank, model in self._ranks.items()}
            self._begin_anew()

    def _expect(self, generation: int) -> None:
        """Await the ranks of a generation, where it is a new one: what those before said last tells nothing of them."""
        if generation > self._newest:
            self._newest = generation
            for model in self._ranks.values():
                model.expect()

    def listen(self, rank: int, now: float) -> None:
        """Take note that somebody listens to this rank from now on."""
        if rank in self._ranks:
            self._ranks[rank].listened_at = now

    def count_down(self, line: str) -> None:
        """Take in who is left of an ending that goes on here, without a supervisor; from any thread."""
        self._countdown = line

    def know_liveness(self, liveness: Liveness) -> None:
        """Take in what the process table says."""
        self._liveness = liveness
        for rank, model in self._ranks.items():
            if model.member is not None:
                model.alive = rank in liveness.alive
                model.look(liveness.seen.get(rank), liveness.at)

    def gaps(self) -> dict[int, int]:
        """Return, by rank, the number of the first record that is missing."""
        expected = self._watched & self._ranks.keys() if self._brief else self._ranks
        return {rank: gap for rank in expected if (gap := self._ranks[rank].gap) is not None}

    def fill(self, rank: int, steps: Iterable[wire.Step], *, last: bool) -> None:
        """Take in records that were asked for; `last` when no more of them will come."""
        if rank in self._ranks:
            self._ranks[rank].fill(steps, last=last)

    def frame(self, now: float) -> Frame:
        """Return the frame of this moment.

        This moves the model on: a new state, a rank that fell silent or a new verdict is noted as an event, once.
        """
        own = {rank: model.state(now) for rank, model in self._ranks.items()}
        state = self._run_state(own)
        _, culprit = self._cause()
        shown = {each: states.in_run(each, state, False) for each in set(own.values())}
        told = {rank: shown[each] for rank, each in own.items()}
        if culprit in own:
            told[culprit] = states.in_run(own[culprit], state, True)
        self._note_changes(now, state, told)
        hosts = {model.member.host for model in self._ranks.values() if model.member is not None}

        def draw(rank: int) -> RankFrame:
            return self._ranks[rank].frame(
                now,
                told[rank],
                self._logs.get(rank),
                # The clocks of two machines are not the same to a millisecond.
                exchange=self._alignment.means_ms(rank) if len(hosts) < 2 else None,
            )

        ranks: Sequence[RankFrame]
        if len(self._ranks) > ALL_IN_SIGHT:
            ranks = Ranks(len(self._ranks), draw, lambda field: self._tell(field, now, told))
        else:
            ranks = tuple(draw(rank) for rank in self._ranks)
        return self._frame_of(now, state, ranks)

    def _tell(self, field: str, now: float, told: Mapping[int, str]) -> Sequence[Any] | None:
        """Return a field of all ranks as their frames would have it; None for one that is not at hand."""
        models = self._ranks.values()
        match field:
            case "rank":
                return list(self._ranks)
            case "state":
                return list(told.values())
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
        live = self._liveness
        return states.of_run(
            set(ranks.values()),
            ran=any(model.ran for model in self._ranks.values()),
            record=self._run.state,
            told=None if self._group is None else self._group.state,
            found=None if live is None else live.state,
            killed=self._run.killed_by is not None,
            frozen=live is not None and live.frozen_at is not None,
        )

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
                if before not in (None, each) and (each in ("silent", "stalled") or each == "frozen" != state):
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
        return verdict if verdict.share >= self._thresholds.verdict_share * (REMAINING_SHARE if told else 1) else None

    def _telling(self, state: str) -> str:
        if state in ENDED:
            code = self._run.exit_code
            return f"run {state}" + (f", exit code {code}" if code is not None else "")
        return state

    def _add(self, event: EventLine) -> None:
        self._events.append(event)

    def _frame_of(self, now: float, state: str, ranks: Sequence[RankFrame]) -> Frame:
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
            history=self.history,
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
            generation=self._newest,
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
        samples=None if summary.samples is None or not math.isfinite(summary.samples) else round(summary.samples),
        starved_ns=summary.starved_ns,
    )
