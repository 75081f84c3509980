"""What is known of one run.

Pure: no sockets, no files, no clock of its own.  `apply` and its neighbours take in what comes from the ranks, which
the judge of the run has from here, and `advance` what follows from the time that goes by; `framer` makes frames of it,
and changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from ddptop.agent import wire
from ddptop.agent.control.silence import LastHeard
from ddptop.agent.observer.judge.join import StepJoin
from ddptop.agent.observer.model.changes import Changes
from ddptop.agent.observer.model.collectives import Alignment
from ddptop.agent.observer.model.hosts import Hosts
from ddptop.agent.observer.model.ranks.generations import Generations
from ddptop.agent.observer.model.ranks.group import Totals, add_up, step_of
from ddptop.agent.observer.model.ranks.rank import DEFAULT, RankModel
from ddptop.agent.observer.model.situation import Liveness, Situation, Sources, Supervision
from ddptop.agent.run.rundir import Member, Run
from ddptop.agent.run.states import has_other_hosts
from ddptop.agent.run.switches.thresholds import Thresholds
from ddptop.agent.wire.frames import ENDED, EventLine, RankFrame
from ddptop.agent.wire.hosts import HostFrame

if TYPE_CHECKING:
    from ddptop.agent.observer.judge.judge import Judge

RENEWED_S = 1.0
"""The numbers of a large group are added up no more often than this."""
ADDED_UP = 8
"""Those of so many ranks are added up each time."""


class Store:
    """Everything known of one run."""

    def __init__(
        self,
        run: Run,
        thresholds: Thresholds = DEFAULT,
        *,
        brief: bool = False,
    ) -> None:
        """Know nothing yet; `brief` where only the ranks that are watched send their records."""
        self.run = run
        self._thresholds = thresholds
        self.is_brief = brief
        """True where only the ranks that are watched send their records."""
        self.judge: Judge | None = None
        """The judge of the run; None where another host judges it, and before it is judged."""
        self._join = StepJoin(run.world)
        self.alignment = Alignment(run.world)
        self.ranks = {rank: self._new_rank(rank) for rank in range(run.world)}
        self._watched: frozenset[int] = frozenset()
        self._totals: tuple[float, Totals] | None = None
        """Of the group, and when they were added up."""
        self.changes = Changes(thresholds.verdict_share)
        self.supervision: Supervision | None = None
        self.last_heard = LastHeard(thresholds.silent_s)
        """The times at which the observer of the run was heard."""
        self.liveness: Liveness | None = None
        self.hosts = Hosts(run.world)
        self.generations = Generations()
        self.refused = 0
        """Messages that could not be read here."""
        if run.injected:
            text = f"injected faults: {run.injected}"
            self.changes.add(EventLine(run.created_at_ns / 1e9, text, None, "warning"))
        totals = add_up(self.ranks.values(), thresholds.slowest_factor)
        self.situation = self._situation_at(run.created_at_ns / 1e9, totals)
        """The one that `advance` came to last."""

    def apply(self, message: wire.Telemetry, now: float) -> None:
        """Take in one message from a rank or the observer."""
        # Nearly all are these, and a class pattern asks the metaclass of their classes.
        if type(message) is wire.Steps:
            self.take_steps(message, now)
            return
        if type(message) is wire.Beat:
            self._take_beat(message, now)
            return
        if type(message) is wire.Summary:
            self._take_summary(message, now)
            return
        match message:
            case wire.Hello():
                self._greet(message, now, heard=True)
            case wire.Event(at_ns, text, rank, level):
                self.changes.add(EventLine(at_ns / 1e9, text, rank, level))
            case wire.Sampled():
                self._take_sampled(message, now)
            case wire.Checksums():
                if self.judge is not None:
                    self.judge.checksums(message)

    def supervise(self, supervision: Supervision, now: float) -> None:
        """Take in what the observer's main thread says of the run, once a second at least."""
        self._observe(now)
        self.supervision = supervision

    def know_hosts(self, hosts: Sequence[HostFrame]) -> None:
        """Take in what is known of the hosts."""
        self.hosts.take(hosts)
        self.hosts.set_alive(self.ranks)
        self._know_clocks()

    def _know_clocks(self) -> None:
        shown = self.hosts.shown
        self.alignment.clocks = shown.clock if shown.several else None
        self.hosts.set_clocks(self.ranks)

    def take_steps(self, message: wire.Steps, now: float, *, recorded: bool = False) -> None:
        """Take in records of a rank, in order; of a small group whole steps go to the alignment and to the judge."""
        self._follow(message.generation, now)
        model = self.ranks.get(message.rank)
        if model is None:
            self.refused += 1
            return
        if message.generation != self.generations.shown:
            return
        if not recorded:
            model.heard_at = now
        new, judge = model.take(message.steps, recorded=recorded), self.judge
        if judge is not None and (recorded or judge.generation != message.generation):
            judge = None
        for step in () if self.is_brief else new:
            if (together := self._join.take(message.rank, step)) is not None:
                self.alignment.take(together)
                if judge is not None:
                    judge.step(together)

    def take_frame(self, frame: RankFrame, now: float) -> None:
        """Take in how the observer of another host shows a rank there; one of an earlier process is left out."""
        model = self.ranks.get(frame.rank)
        if model is not None and model.far and model.member is not None and frame.pid == model.member.process.pid:
            model.take_frame(frame, now)

    def _take_beat(self, beat: wire.Beat, now: float) -> None:
        if beat.generation is not None:
            self._follow(beat.generation, now)
        model = self.ranks.get(beat.rank)
        if model is None:
            self.refused += 1
        elif beat.generation is not None and beat.generation != self.generations.newest:
            # Late, of a process that another one has taken the place of.
            return
        else:
            model.beat, model.heard_at, model.met = beat, now, True
            if self.judge is not None:
                self.judge.beat(beat)

    def _take_sampled(self, message: wire.Sampled, now: float, *, recorded: bool = False) -> None:
        model = self.ranks.get(message.rank)
        if model is None:
            self.refused += 1
        elif message.generation == self.generations.newest:
            model.take_sampled(message)
            if self.judge is not None and not recorded:
                self.judge.sampled(message)

    def _take_summary(self, summary: wire.Summary, now: float, *, recorded: bool = False) -> None:
        self._follow(summary.generation, now)
        model = self.ranks.get(summary.rank)
        if model is None:
            self.refused += 1
        elif summary.generation == self.generations.shown:
            model.take_summary(summary)
            model.heard_at = now
            if self.judge is not None and not recorded:
                self.judge.summary(summary)

    def recall(self, recorded: wire.Telemetry, now: float) -> None:
        """Take in what is recorded: steps, of which earlier ones may have been left out, events, and of each rank who
        it was and how it was last. What a rank has said itself meanwhile is newer.
        """
        if isinstance(recorded, wire.Hello | wire.Beat | wire.Steps | wire.Summary) and recorded.rank not in self.ranks:
            # Of an earlier start of the group, which had more ranks.
            return
        match recorded:
            case wire.Steps():
                self.take_steps(recorded, now, recorded=True)
            case wire.Summary():
                self._take_summary(recorded, now, recorded=True)
            case wire.Hello():
                model = self.ranks.get(recorded.rank)
                if model is None or model.hello is None or recorded.generation > self.generations.shown:
                    self._greet(recorded, now, heard=False)
            case wire.Beat():
                self._recall_beat(recorded)
            case wire.Sampled():
                self._take_sampled(recorded, now, recorded=True)
            case _:
                self.apply(recorded, now)

    def _recall_beat(self, beat: wire.Beat) -> None:
        at = beat.at_ns / 1e9
        if beat.generation is not None:
            self._follow(beat.generation, at)
        model = self.ranks.get(beat.rank)
        if model is None or model.beat is not None:
            return
        if beat.generation is None:
            # Of an agent that does not tell: it is the present process's if that was there by then.
            began = None if model.hello is None else model.hello.started_at_ns
            if beat.at_ns < began if began is not None else self.generations.newest > 0:
                return
        elif beat.generation != self.generations.newest:
            return
        model.beat, model.heard_at = beat, max(at, model.heard_at or at)

    def _greet(self, hello: wire.Hello, now: float, *, heard: bool) -> None:
        model = self.ranks.get(hello.rank)
        if model is None or (hello.run_id != self.run.run_id and not self._is_elsewhere(hello)):
            self.refused += 1
            return
        if heard:
            self.generations.hold(hello, self.run)
        self._follow(hello.generation, hello.started_at_ns / 1e9)
        if hello.generation != self.generations.shown:
            return
        for early in self.generations.release(hello.rank):
            self._greet(early, early.started_at_ns / 1e9, heard=False)
        model = self.ranks[hello.rank]
        if hello.protocol != wire.PROTOCOL and model.hello is None:
            text = f"rank {hello.rank} speaks protocol {hello.protocol}, the observer {wire.PROTOCOL}: update the older"
            self.changes.add(EventLine(now, text, hello.rank, "warning"))
        if model.hello is not None and model.hello.started_at_ns != hello.started_at_ns:
            # A new process in the old one's place: its numbers begin anew.
            self.ranks[hello.rank] = model = model.successor(0)
            self._begin_anew()
        model.hello = hello
        if heard:
            model.heard_at = now

    def _is_elsewhere(self, hello: wire.Hello) -> bool:
        """Say whether a rank is on another host; where a job came to it later, it has an id of its own there.

        That its host belongs to this training is for the observers to judge.
        """
        here = (model.member.host for model in self.ranks.values() if model.member is not None and not model.far)
        return has_other_hosts(self.run) and hello.host not in here

    def _follow(self, generation: int, now: float) -> None:
        """Begin with the ranks of a new generation, where this is one: torchrun has started all of them anew."""
        if generation <= self.generations.shown:
            return
        if not self.generations.is_possible(generation, self.run):
            self.refused += 1
            return
        if not self.generations.is_begun(generation, self.run.world):
            return
        self.expect(generation)
        # Every rank's curve goes on from the same step, however far each had come.
        last = max(model.last_step for model in self.ranks.values())
        self.ranks = {rank: model.successor(last) for rank, model in self.ranks.items()}
        self.generations.begin(generation, now, last)
        self.changes.restart()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._join = StepJoin(self.run.world)
        self.alignment = Alignment(self.run.world)
        self._know_clocks()
        self._totals = None

    def _new_rank(self, rank: int) -> RankModel:
        model = RankModel(rank, self._thresholds)
        model.brief = self.is_brief
        return model

    def _observe(self, now: float) -> None:
        """Take note that the observer is heard: that it was not tells nothing of the ranks."""
        if missed := self.last_heard.hear(now):
            for model in self.ranks.values():
                if model.heard_at is not None:
                    model.heard_at += missed

    def heard(self, now: float, within_s: float) -> frozenset[int]:
        """Return the ranks that something came from lately."""
        return frozenset(
            rank
            for rank, model in self.ranks.items()
            if model.met and model.heard_at is not None and 0 <= now - model.heard_at < within_s
        )

    @property
    def ended(self) -> bool:
        """True once the run is over by its record, by its observer's word or by the process table."""
        return self._sources.ended

    @property
    def held(self) -> list[bool]:
        """For each rank that was heard, true where it is held."""
        return [each.beat.held_at_ns is not None for each in self.ranks.values() if each.beat is not None]

    def watch(self, ranks: frozenset[int]) -> None:
        """Expect the records of these ranks, and of all others summaries alone."""
        for rank in self._watched ^ ranks:
            if rank in self.ranks:
                self.ranks[rank].watch(rank in ranks)
        self._watched = ranks

    def know_run(self, run: Run) -> None:
        """Take in the run's record; its number of ranks is the one that everything here was made for."""
        self.run = run if run.world == self.run.world else msgspec.structs.replace(run, world=self.run.world)

    def know_members(self, members: Mapping[int, Member], far: Collection[int] = frozenset()) -> None:
        """Take in the ranks' records, those of the ranks on `far` hosts among them."""
        newest = max((member.generation for member in members.values()), default=0)
        if members and self.generations.fall_back(newest):
            self.ranks = {rank: model.successor(model.last_step) for rank, model in self.ranks.items()}
            self._begin_anew()
        self.expect(newest)
        for rank, member in members.items():
            if rank in self.ranks and member.generation == self.generations.newest:
                self.ranks[rank].member = member
                self.ranks[rank].far = rank in far
                early = self.generations.release_one(rank, member.generation)
                if early is not None:
                    self._greet(early, early.started_at_ns / 1e9, heard=True)

        self.hosts.know(
            {rank: model.member for rank, model in self.ranks.items() if model.member is not None},
            frozenset(rank for rank in members if rank not in far),
        )
        self._know_clocks()

    def expect(self, generation: int) -> None:
        """Await the ranks of a generation, where it is a new one: what those before said last tells nothing of them."""
        if generation > self.generations.newest:
            self.generations.newest = generation
            for model in self.ranks.values():
                model.expect()

    def listen(self, rank: int, now: float) -> None:
        """Take note that somebody listens to this rank from now on."""
        if rank in self.ranks:
            self.ranks[rank].listened_at = now

    def know_liveness(self, liveness: Liveness) -> None:
        """Take in what the process table says."""
        self.liveness = liveness
        for rank, model in self.ranks.items():
            if model.member is not None and not model.far:
                model.alive = rank in liveness.alive
                if rank not in liveness.spared:
                    model.look(liveness.seen.get(rank), liveness.at)

    def advance(self, now: float) -> None:
        """Move time on: what the run and its ranks are like by now, and as events what has changed, each once."""
        self.situation = situation = self._situation_at(now, self._added_up(now))
        # Before anybody is heard nothing is known: a run that is met in full swing did not begin now.
        begun = situation.state != "starting" or any(model.beat is not None for model in self.ranks.values())
        # Once all ranks have ended, the run does not begin to run: the observer says how it has ended.
        over = situation.state == "running" and all(state in ENDED for state in situation.ranks.values())
        if begun and not over:
            self.changes.note_state(now, situation.state)
        withheld = self.hosts.withheld(situation, self.ranks, self._thresholds.silent_s)
        self.changes.note_ranks(now, situation.state, situation.ranks, withheld, self.ranks)

    @property
    def unlinked(self) -> tuple[int, ...]:
        """Ranks on other hosts that nobody tells of, once all ranks of this host have come."""
        return () if self._sources.ended else self.hosts.unlinked(self.run, self.ranks)

    def _situation_at(self, now: float, totals: Totals) -> Situation:
        # While the observer is silent, the silence of the ranks is no evidence: they are as they were.
        known = now
        if self.last_heard.missed_s(now) is not None:
            recorded = max((model.heard_at for model in self.ranks.values() if model.heard_at is not None), default=now)
            known = recorded if self.last_heard.at is None else self.last_heard.at
        unheard, unlinked = self.hosts.unheard, self.unlinked
        return self._sources.situation(now, known, self.ranks, totals, unheard, unlinked)

    def _added_up(self, now: float) -> Totals:
        """Return the numbers of the group; those of a large one need not be newer than its ranks' summaries."""
        # At the end the last numbers stay.
        anew = self._totals is None or len(self.ranks) <= ADDED_UP or self._sources.ended
        if anew or self._totals is None or not 0 <= now - self._totals[0] < RENEWED_S:
            for model in self.ranks.values():
                if not model.brief:
                    model.settle()
            self._totals = now, add_up(self._told_of, self._thresholds.slowest_factor)
        elif not self.is_brief:
            return replace(self._totals[1], step=step_of(self._told_of))
        return self._totals[1]

    @property
    def _told_of(self) -> Collection[RankModel]:
        """The ranks without those on hosts that nobody tells of, whose steps are not known here."""
        untold = {rank for rank in self.hosts.unheard if self.ranks[rank].step is None}.union(self.unlinked)
        return [model for rank, model in self.ranks.items() if rank not in untold] if untold else self.ranks.values()

    @property
    def _sources(self) -> Sources:
        return Sources(self.run, self.supervision, self.liveness)

    @property
    def cause(self) -> tuple[str | None, int | None]:
        """The first cause of the run's end and the rank it is of, as far as they are known."""
        return self._sources.cause
