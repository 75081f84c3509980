"""The judge of a run: whole steps and the signs of life of its ranks go in, verdicts come out. Pure, without a clock.

Whatever is given is taken or left out; nothing raises, and nothing grows with the length of the run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.judge.blocks import ROUNDS, STEPS
from ddptop.agent.observer.judge.intervals import Accusation, Intervals, Reason, accusation_of
from ddptop.agent.observer.judge.kinds.by_looks import SlowByLooks
from ddptop.agent.observer.judge.kinds.divergence import Divergence
from ddptop.agent.observer.judge.kinds.finder import Finder
from ddptop.agent.observer.judge.kinds.health import Health
from ddptop.agent.observer.judge.kinds.hosts import HostsOfRanks, Links, SlowHost
from ddptop.agent.observer.judge.kinds.memory_growth import GroupMemory
from ddptop.agent.observer.judge.kinds.no_communication import Communication
from ddptop.agent.observer.judge.kinds.no_core import NoCore
from ddptop.agent.observer.judge.kinds.slow import SlowRank
from ddptop.agent.observer.judge.kinds.turns import Turns
from ddptop.agent.observer.judge.large import MOST_SUSPECTS, Detail, Rounds

_HOLDING_BACK: Final = frozenset(kind for finder in (SlowHost, SlowRank, NoCore, Turns) for kind in finder.kinds)
"""Kinds of what makes a step longer for all."""


class Judge:
    """Finds the faults of one run."""

    def __init__(self, world: int, *, generation: int = 0, first: int = 1) -> None:
        """Know nothing of the ranks yet.

        Args:
            world: Number of ranks.
            generation: The restart count of the group that is judged; see `restart`.
            first: Number of the first new verdict.
        """
        self._world = world
        self._intervals = Intervals(first, generation)
        self._heard_ns = self._now_ns = 0
        self._links = Links()
        self._begin()

    def _begin(self) -> None:
        self._large = self._world > wire.EACH_RECORD
        self._detail = Detail()
        span = ROUNDS if self._large else STEPS
        self._slow_rank = SlowRank(self._world, span, self._detail if self._large else None)
        self._hosts = HostsOfRanks(self._world)
        self._slow_host = SlowHost(self._hosts, span)
        self._by_looks = SlowByLooks(self._world)
        self._reasons: Mapping[Accusation, Reason] = {}
        self._rounds = Rounds(self._world)
        self._health = Health(self._world, self._slow_rank.evidence.time_of)
        self._communication = Communication(self._world)
        self._divergence = Divergence(self._world)
        self._finders: tuple[Finder, ...] = (
            self._health, self._divergence, self._communication, self._slow_host, self._slow_rank, self._by_looks,
            NoCore(self._hosts, span), self._slow_rank.turns, GroupMemory(self._world),
        )  # fmt: skip
        self._last: dict[int, int] = {}
        """Of a large group, by rank, its newest record that was taken in."""
        self._standing: wire.Verdict | None = None
        self._stood_until_ns: int | None = None

    def resume(self, known: Iterable[wire.Verdict], now_ns: int) -> None:
        """Go on with the verdicts of the observer before this one.

        Those that go on are returned until they are found again, with their numbers, or are over after a while; those
        of other processes are over.  New ones are counted on from the last.
        """
        self._intervals.resume(known, now_ns)

    @property
    def generation(self) -> int:
        """The restart count of the group that is judged."""
        return self._intervals.generation

    def step(self, together: dict[int, wire.Step]) -> None:
        """Take in the records that all ranks of a small group made of one step, in the order of the steps."""
        self._heard_ns = max(self._heard_ns, *(record.end_at_ns for record in together.values()))
        if self._slow_rank.evidence.take(together):
            self._follow()

    def records(self, message: wire.Steps) -> None:
        """Take in records of one of the `suspects` of a large group, in order; one that comes again is left out."""
        if message.generation != self.generation or message.rank not in self._detail.places:
            return
        last = self._last.get(message.rank, -1)
        for record in message.steps:
            if record.seq > last:
                last = record.seq
                self._heard_ns = max(self._heard_ns, record.end_at_ns)
                self._detail.take(message.rank, record)
        self._last[message.rank] = last

    def _follow(self) -> None:
        self._slow_rank.deliberate()
        for finder in self._finders:
            finder.follow(self._slow_rank.evidence)

    def reasons(self, found: Mapping[Accusation, Reason]) -> None:
        """Take in what was found behind verdicts since they were told."""
        self._reasons = found

    def ordinary(self) -> list[int]:
        """Return ranks that are neither slow nor fast, the one nearest to the middle first."""
        suspected, usual = self._slow_rank.suspects(1)
        return [rank for rank in usual if rank not in suspected]

    def summary(self, message: wire.Summary) -> None:
        """Take in a summary; those of a small group say nothing that its records do not."""
        if not self._large or message.generation != self.generation:
            return
        self._heard_ns = max(self._heard_ns, message.end_at_ns)
        block = self._rounds.take(message)
        if block is not None:
            self._slow_rank.evidence.add(block)
            self._follow()
            asked = self._detail.ranks
            self._detail.ask(*self._slow_rank.suspects(MOST_SUSPECTS))
            if self._detail.ranks != asked:
                # Records are filled in from before those that had been heard.
                self._last.clear()

    def hosts(self, states: Sequence[wire.HostFrame]) -> None:
        """Take in what is known of the hosts of the run, and which ranks each has."""
        for state in states:
            for rank in state.ranks:
                self._hosts.take(rank, state.host)
        self._links.take(states)

    def beat(self, message: wire.Beat) -> None:
        """Take in a heartbeat."""
        if message.rank < self._world and message.generation in (None, self.generation):
            self._heard_ns = max(self._heard_ns, message.at_ns)
            for finder in self._finders:
                finder.take(message)

    def sampled(self, message: wire.Sampled) -> None:
        """Take in looks from outside at a rank without an agent."""
        if message.rank < self._world and message.generation == self.generation:
            self._heard_ns = max(self._heard_ns, message.at_ns)
            self._by_looks.sampled(message)

    def stand(self, finding: wire.Verdict | None, ceased_at_ns: int | None) -> None:
        """Take in what is known of a run that makes no steps, None where it makes some, and when it last began to."""
        self._standing, self._stood_until_ns = finding, ceased_at_ns

    def checksums(self, message: wire.Checksums) -> None:
        """Take in the checksums of a rank's parameters."""
        if message.rank < self._world and message.generation == self.generation:
            self._heard_ns = max(self._heard_ns, message.at_ns)
            self._divergence.compare(message)

    def notes(self) -> list[str]:
        """Return lines for the list of events: what is compared between the ranks, and what is not."""
        return self._divergence.notes()

    def restart(self, generation: int) -> None:
        """Forget the ranks, because others have taken their places; what was wrong with them is over.

        This is called, too, with the same generation, for a new process of a rank, whose steps are counted anew.
        """
        until_ns = min(self._heard_ns, self._now_ns)
        self.conclude()
        self.verdicts(max(self._heard_ns, self._now_ns))
        self._intervals.close(until_ns)
        self._intervals.generation = generation
        self._begin()

    @property
    def missing_steps(self) -> int:
        """Steps until a rank can be said to be slow, about; 0 where one can."""
        return self._slow_rank.evidence.missing_steps if self._world > 1 else 0

    @property
    def named_from_ms(self) -> float | None:
        """Milliseconds a step from which a delay of one rank would be told; None where it would not, or one is."""
        return self._slow_rank.named_from_ms

    @property
    def named_from_share(self) -> float | None:
        """The same by looks from outside, in parts of its time; see `SlowByLooks`."""
        return self._by_looks.named_from_share

    def suspects(self) -> frozenset[int]:
        """Return the ranks of a large group whose records would show more: a few that may be slow, and others."""
        return self._detail.ranks

    def verdicts(self, now_ns: int) -> tuple[wire.Verdict, ...]:
        """Return what is wrong at this moment, the one that matters most first.

        A run that hangs comes first, and nothing holds it back meanwhile; then numbers that are not finite, because the
        training is worth nothing from then on; then parameters that have diverged, memory that is full within the hour,
        which ends it, and ranks that do not communicate; then what holds the group back, by its cost; then other
        growth, and that the run only stands. Nothing holds ranks back that do not communicate.
        """
        self._now_ns = now_ns
        known = [finder.finding(now_ns) for finder in self._finders]
        found = [each for each in known if each is not None]
        found = [each for each in found if each.kind not in _HOLDING_BACK or self._holds_back(each, found)]
        ceased: dict[str, int | None] = {}
        for finder in self._finders:
            for kind in finder.kinds:
                ceased[kind] = max(filter(None, (ceased.get(kind), finder.ceased_at_ns)), default=None)
        ceased |= dict.fromkeys(("hang", "standing"), self._stood_until_ns)
        findings = [self._on_hosts(self._with_reason(each)) for each in (self._standing, *found) if each is not None]
        self._intervals.update(findings, ceased, now_ns)
        return self._intervals.verdicts

    def _holds_back(self, finding: wire.Verdict, found: Sequence[wire.Verdict]) -> bool:
        """Say whether this holds the group back, and nothing else that was found explains it."""
        if self._standing is not None and self._standing.kind == "hang":
            return False
        if self._communication.is_absent:
            return finding.kind == "input_bound" and finding.rank is None
        if finding.kind in Turns.kinds:
            # A rank that is to blame, or batches that vary, say more.
            slow = next((each for each in found if each.kind in SlowRank.kinds), None)
            return slow is None or (slow.rank is None and slow.kind != "unequal_work")
        host = next((each for each in found if each.kind in SlowHost.kinds), None)
        return host is None or not self._slow_host.explains(host, finding)

    def _with_reason(self, finding: wire.Verdict) -> wire.Verdict:
        reason = self._reasons.get(accusation_of(finding))
        return finding if reason is None else reason.added_to(finding)

    def _on_hosts(self, finding: wire.Verdict) -> wire.Verdict:
        """Add what is known of the hosts, where the ranks are on several."""
        if finding.rank is not None and (host := self._hosts.of(finding.rank)):
            named = f"rank {finding.rank} ({host})"
            text = re.sub(rf"\brank {finding.rank}\b", lambda _: named, finding.text, count=1)
            return msgspec.structs.replace(finding, text=text, host=host)
        if finding.kind == "communication_bound" and (remark := self._links.remark):
            return msgspec.structs.replace(finding, text=f"{finding.text}; {remark}")
        return finding

    def changes(self) -> list[wire.Verdict]:
        """Return the verdicts that are to be recorded since this was last asked: new, over, or with other figures."""
        return self._intervals.changes()

    def conclude(self) -> None:
        """Wait for nobody any more with what was noticed, because the ranks have ended."""
        self._health.is_over = True

    def close(self, at_ns: int) -> None:
        """End what goes on, because the run has ended."""
        self._intervals.close(at_ns)
