"""Verdicts: published when they change, recorded as intervals once each, also over a takeover."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq
from support.fakes.ranks import beat, ranks, steps, summary
from support.fakes.relay import relayed
from support.harness import until

from ddptop.agent import wire
from ddptop.agent.observer.judge.intervals import Accusation, Finding, Reason
from ddptop.agent.observer.judge.judge import Judge
from ddptop.agent.observer.relay import relay, suspects
from ddptop.agent.observer.relay.verdicts import MOST_FAULTS, RunVerdicts
from ddptop.agent.record.recording import read_verdicts
from ddptop.agent.run.rundir import RunDir

SLOW = wire.Verdict(1, "slow_rank", "rank 1 holds the group back", 100, rank=1, phase="data")


class Told(Judge):
    """A judge that finds what it is told."""

    def __init__(self, known: Sequence[wire.Verdict] = ()) -> None:
        self.known = known
        self.finds: tuple[wire.Verdict, ...] = ()
        self.waiting: tuple[wire.Verdict, ...] = ()
        self.over: list[wire.Verdict] = []
        self.suspected: frozenset[int] = frozenset()
        self.heard: list[object] = []
        self.standing: tuple[Finding | None, int | None] = (None, None)
        self.broken = False

    def steps(self, rank: int, records: Iterable[wire.Step], generation: int) -> None:
        self._hear((rank, [record.seq for record in records], generation))

    def summary(self, message: wire.Summary) -> None:
        self._hear(message)

    def beat(self, message: wire.Beat) -> None:
        self._hear(message)

    def checksums(self, message: wire.Checksums) -> None:
        self._hear(message)

    def notes(self) -> list[str]:
        return []

    def restart(self, generation: int) -> None:
        self._hear(generation)

    def stand(self, finding: Finding | None, ceased_at_ns: int | None) -> None:
        self.standing = finding, ceased_at_ns

    def verdicts(self, now_ns: int) -> tuple[wire.Verdict, ...]:
        if self.broken:
            raise ArithmeticError("broken")
        return self.finds

    def ended(self) -> list[wire.Verdict]:
        ended, self.over = self.over, []
        return ended

    def conclude(self) -> None:
        self.finds = (*self.finds, *self.waiting)

    def reasons(self, found: Mapping[Accusation, Reason]) -> None:
        """Take in what was found behind verdicts."""

    def ordinary(self) -> list[int]:
        return []

    @property
    def missing_steps(self) -> int:
        return 0

    @property
    def named_from_ms(self) -> float | None:
        return None

    def suspects(self) -> frozenset[int]:
        return self.suspected

    def close(self, at_ns: int) -> list[wire.Verdict]:
        open_, self.finds = self.finds, ()
        return [msgspec.structs.replace(each, until_at_ns=at_ns) for each in open_]

    def hosts(self, states: Sequence[wire.HostFrame]) -> None:
        """Take in what is known of the hosts."""

    def _hear(self, something: object) -> None:
        if self.broken:
            raise ArithmeticError("broken")
        self.heard.append(something)


class Recorded:
    """The verdicts of a `Told`, the file of which is a dict."""

    def __init__(self, known: Sequence[wire.Verdict] = (), generation: int = 0) -> None:
        self.now = 0.0
        self.judge = Told()
        self.writes: list[wire.Verdict] = []
        """What was recorded by now."""
        self.said: list[tuple[str, ...]] = []
        common: Any = SimpleNamespace(judge=self.writes.append)
        events: Any = SimpleNamespace(say=lambda *text: self.said.append(text))
        self.verdicts = RunVerdicts(2, common, events, self._make, lambda: self.now)
        self.verdicts.begin(generation, known, 1_000)

    def _make(self, world: int, generation: int, known: Sequence[wire.Verdict]) -> Told:
        self.judge.known = known
        return self.judge

    @property
    def file(self) -> dict[int, wire.Verdict]:
        """What the file has at the end: the last that was written under each number."""
        return {verdict.number: verdict for verdict in self.writes}


def test_figures_that_change_are_written_seldom() -> None:
    """Published at once, recorded every ten seconds; beginning and end at once."""
    made = Recorded()
    for second in range(30):
        made.now = float(second)
        made.judge.finds = (msgspec.structs.replace(SLOW, cost_ms=float(second)),)
        made.verdicts.turn(second)
        assert made.verdicts.now == made.judge.finds
    assert [verdict.cost_ms for verdict in made.writes] == [0.0, 10.0, 20.0]
    made.judge.finds, made.judge.over = (), [msgspec.structs.replace(SLOW, cost_ms=29.0, until_at_ns=500)]
    made.verdicts.turn(600)
    assert made.verdicts.now == ()
    assert made.file == {1: msgspec.structs.replace(SLOW, cost_ms=29.0, until_at_ns=500)}


def test_what_goes_on_at_the_end_of_the_run_ends_with_it() -> None:
    """Nothing recorded is left without an end."""
    made = Recorded()
    made.judge.finds = (SLOW,)
    made.verdicts.turn(200)
    made.verdicts.finish(900)
    assert made.file == {1: msgspec.structs.replace(SLOW, until_at_ns=900)}


def test_what_waits_for_others_is_told_at_the_end() -> None:
    """A run that ends right after something was noticed tells it all the same, to those who look on as well."""
    made = Recorded()
    made.judge.waiting = (SLOW,)
    made.verdicts.turn(200)
    assert not made.verdicts.now
    made.verdicts.finish(900)
    assert made.verdicts.now == (SLOW,)
    assert made.file == {1: msgspec.structs.replace(SLOW, until_at_ns=900)}


def test_a_successor_goes_on_with_what_was_recorded() -> None:
    """The judge is given it; what it does not find again is closed, and so is what other ranks were blamed for."""
    other = wire.Verdict(2, "input_bound", "x", 50)
    old = wire.Verdict(3, "slow_rank", "y", 10, rank=0, generation=0)
    made = Recorded([msgspec.structs.replace(other, until_at_ns=60)])
    assert made.judge.known == [msgspec.structs.replace(other, until_at_ns=60)]
    assert made.writes == []
    made = Recorded([msgspec.structs.replace(SLOW, generation=1), msgspec.structs.replace(other, generation=1), old], 1)
    assert made.file == {3: msgspec.structs.replace(old, until_at_ns=1_000)}
    made.judge.finds = (msgspec.structs.replace(SLOW, generation=1),)
    made.verdicts.turn(2_000)
    assert made.file[2].until_at_ns == 2_000
    assert 1 not in made.file


def test_checksums_wait_for_the_judge() -> None:
    """A rank sends those of its last checks once, when it is heard for the first time."""
    judge = Told()
    nobody: Any = None
    verdicts = RunVerdicts(2, nobody, nobody, lambda *_: judge)
    early, late = (wire.Checksums(0, step, step, ()) for step in (5, 10))
    verdicts.take(wire.Beat(0, 1, "running", "forward", 1, None, 1))
    verdicts.take(early)
    verdicts.begin(0, (), 1_000)
    verdicts.take(late)
    assert judge.heard == [early, late]


def test_errors_of_the_judge_cost_verdicts_and_are_said_once() -> None:
    """What went on is closed; after very many errors the judge is left alone."""
    made = Recorded()
    made.judge.finds = (SLOW,)
    made.verdicts.turn(200)
    made.judge.broken = True
    made.verdicts.turn(300)
    assert made.file == {1: msgspec.structs.replace(SLOW, until_at_ns=300)}
    for number in range(MOST_FAULTS + 10):
        made.verdicts.take(beat(0, number))
    made.verdicts.take(steps(0, 1))
    made.verdicts.turn(400)
    assert made.verdicts.faults == MOST_FAULTS
    assert [level for _, level in made.said] == ["warning", "error"]
    events: Any = SimpleNamespace(say=lambda *text: made.said.append(text))
    failing = RunVerdicts(1, events, events, _cannot)
    failing.begin(0, (), 0)
    failing.turn(1)
    failing.finish(2)
    assert failing.faults == 1


def test_a_judge_that_is_not_asked_any_more_has_no_verdicts() -> None:
    """What it told last is closed and told no more."""
    made = Recorded()
    made.judge.finds = (SLOW,)
    made.verdicts.turn(200)
    made.judge.broken = True
    for number in range(MOST_FAULTS):
        made.verdicts.take(beat(0, number))
    made.verdicts.turn(300)
    assert made.verdicts.now == ()
    assert made.file == {1: msgspec.structs.replace(SLOW, until_at_ns=300)}
    made.verdicts.turn(400)
    assert made.verdicts.now == ()


def _cannot(world: int, generation: int, known: Sequence[wire.Verdict]) -> Told:
    raise ImportError("no NumPy")


def test_verdicts_are_published_and_recorded_over_a_takeover(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the usual judge, of a rank whose loss is not finite; the next observer tells it under the same number."""
    monkeypatch.setattr(relay, "EVERY_S", 0.05)
    directory = new_run(world=2)
    sick = wire.Beat(1, 10**18, "running", "forward", 3, None, 3, health="loss is nan since step 3", generation=0)
    numbers = set()
    with ranks(directory, 2) as group:
        for finish in (False, True):
            with relayed(directory, finish=finish), zmq.Context() as context, context.socket(zmq.SUB) as looking:
                looking.linger = 0
                looking.subscribe(wire.TOPIC_RUN)
                looking.connect(directory.address("observer", "pub"))
                for rank in group:
                    rank.meet()
                    rank.fill()
                told: list[wire.Verdict] = []
                words: list[int] = []

                def is_told() -> bool:
                    group[1].publish(wire.TOPIC_BEAT, sick)
                    while looking.poll(100):  # used at once
                        message = wire.read_frame(looking.recv_multipart()[1])  # likewise
                        assert isinstance(message, wire.RunFrame)
                        told[:] = message.verdicts  # noqa: B023 # likewise
                        words.append(len(told))  # noqa: B023 # likewise
                        if told:  # noqa: B023 # likewise
                            return True
                    return False

                until(is_told, "the verdict")
                numbers.add(told[0].number)
                assert "nan" in told[0].text
                # Not even its first word says that nothing is wrong any more.
                assert words[0] == finish
                if not finish:
                    until(lambda: read_verdicts(directory.database), "its record")
                    (open_,) = read_verdicts(directory.database)
                    assert open_.until_at_ns is None
            until(lambda: not any(rank.hear() for rank in group), "the relay to leave")
    (recorded,) = read_verdicts(directory.database)
    assert {recorded.number} == numbers
    assert recorded.until_at_ns is not None
    assert recorded.kind == "health"


def test_suspects_of_a_large_group_are_asked_for_their_records(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their last ones, before those that they publish meanwhile; nobody else is asked."""
    monkeypatch.setattr(relay, "EVERY_S", 0.05)
    directory = new_run(world=65)
    judge = Told()
    with ranks(directory, 2) as group, relayed(directory, judge=lambda *_: judge) as relaying:
        for rank in group:
            rank.meet(wire.TOPIC_BATCH)
            rank.fill()
        group[0].publish(wire.TOPIC_SUMMARY, summary(0, 1))
        until(lambda: summary(0, 1) in judge.heard, "the summary")
        judge.suspected = frozenset({1})
        peer, fill = group[1].asked()
        assert isinstance(fill, wire.Fill)
        assert fill.limit == suspects.DETAIL
        group[1].meet(wire.TOPIC_STEPS)
        group[1].publish(wire.TOPIC_STEPS, steps(1, 9))
        until(lambda: relaying._suspects._details[1]._waiting, "the newest to wait")
        group[1].answer(peer, steps(1, 7, 8), wire.Reply(fill.id, True))
        until(lambda: (1, [9], 0) in judge.heard, "the records")
        assert [each for each in judge.heard if isinstance(each, tuple)] == [(1, [7, 8], 0), (1, [9], 0)]
        assert not group[0].is_asked()


def test_the_last_hang_is_kept_for_whoever_tells_the_end() -> None:
    """As it was told last, with its end; that of other processes is none of these."""
    made = Recorded()
    hang = wire.Verdict(4, "hang", "rank 1 hangs · 3 s", 100, hang=wire.Hang("not_entered", (1,)))
    assert made.verdicts.hang is None
    made.judge.finds = (SLOW, hang)
    made.verdicts.turn(200)
    assert made.verdicts.hang == hang
    over = msgspec.structs.replace(hang, until_at_ns=300)
    made.judge.finds, made.judge.over = (), [over]
    made.verdicts.turn(400)
    assert made.verdicts.hang == over
    made.verdicts.restart(0)
    assert made.verdicts.hang == over, "the same processes"
    made.verdicts.restart(1)
    assert made.verdicts.hang is None
