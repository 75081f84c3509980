"""What ranks say in, verdicts out: in the frames, in the record, and for whoever acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zmq
from support.fakes.onlookers import Onlooker
from support.fakes.ranks import Rank, beat, ranks, steps, summary
from support.fakes.relay import relayed
from support.harness import until

from ddptop.agent import wire
from ddptop.agent.observer.judge.judge import Judge
from ddptop.agent.observer.relay import relay, suspects
from ddptop.agent.record.recording import read_events, read_verdicts
from ddptop.agent.run.rundir import RunDir

SICK = wire.Beat(1, 10**18, "running", "forward", 3, None, 3, health="loss is nan since step 3", generation=0)
HANG = wire.Verdict(0, "hang", "rank 1 hangs · 3 s", 100, hang=wire.Hang("not_entered", (1,)))


class Finding(Judge):
    """A judge that finds at the next moment what the test wants."""

    def __init__(self, world: int) -> None:
        super().__init__(world)
        self.finds: tuple[wire.Verdict, ...] = ()
        self.suspected: frozenset[int] = frozenset()
        self.heard: list[Any] = []
        self.broken = False

    def beat(self, message: wire.Beat) -> None:
        if self.broken:
            raise ArithmeticError("broken")

    def summary(self, message: wire.Summary) -> None:
        self.heard.append(message)

    def records(self, message: wire.Steps) -> None:
        self.heard.append([record.seq for record in message.steps])

    def suspects(self) -> frozenset[int]:
        return self.suspected

    def verdicts(self, now_ns: int) -> tuple[wire.Verdict, ...]:
        if self.broken:
            raise ArithmeticError("broken")
        self._intervals.update(self.finds, {}, now_ns)
        return self._intervals.verdicts


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a second pass quickly."""
    monkeypatch.setattr(relay, "EVERY_S", 0.05)


def heard(onlooker: Onlooker) -> list[wire.RunFrame]:
    """Return the frames of the run that an onlooker has."""
    frames = [wire.read_frame(payload) for topic, payload in onlooker.listen() if topic == wire.TOPIC_RUN]
    return [frame for frame in frames if isinstance(frame, wire.RunFrame)]


def met(group: list[Rank]) -> None:
    """Let all ranks be found."""
    for rank in group:
        rank.meet()
        rank.fill()


def test_verdicts_are_in_frames_and_in_the_record_over_a_takeover(new_run: Callable[..., RunDir]) -> None:
    """Of a rank whose loss is not finite; the next observer says it under the same number, and at once."""
    directory = new_run(world=2)
    numbers = set()
    with ranks(directory, 2) as group:
        for finish in (False, True):
            with relayed(directory, finish=finish), zmq.Context() as context:
                onlooker = Onlooker(context, directory, wire.TOPIC_RUN)
                met(group)

                def is_said() -> bool:
                    group[1].publish(wire.TOPIC_BEAT, SICK)
                    return any(frame.verdicts for frame in heard(onlooker))  # noqa: B023 # used at once

                until(is_said, "the verdict")
                said = [frame.verdicts for frame in heard(onlooker)]
                numbers |= {verdict.number for each in said for verdict in each}
                assert "nan" in said[-1][0].text
                assert bool(said[0]) == finish
                if not finish:
                    until(lambda: read_verdicts(directory.database), "its record")
                    (open_,) = read_verdicts(directory.database)
                    assert open_.until_at_ns is None
                onlooker.sub.close()
                onlooker.cmd.close()
            until(lambda: not any(rank.hear() for rank in group), "the relay to leave")
    (recorded,) = read_verdicts(directory.database)
    assert {recorded.number} == numbers
    assert recorded.until_at_ns is not None
    assert recorded.kind == "health"


def test_what_was_only_noticed_is_recorded_at_the_end(new_run: Callable[..., RunDir]) -> None:
    """A run that ends right after something was noticed has it all the same: nobody waits for the other ranks."""
    directory = new_run(world=2)
    with ranks(directory, 2) as group, relayed(directory) as relaying:
        met(group)
        group[1].publish(wire.TOPIC_BEAT, SICK)
        until(lambda: relaying._model.store.held == [False], "the rank to be heard")
    (verdict,) = read_verdicts(directory.database)
    assert (verdict.kind, verdict.rank) == ("health", 1)
    assert verdict.until_at_ns is not None


def test_errors_of_the_judge_cost_verdicts_alone(new_run: Callable[..., RunDir]) -> None:
    """They are said once; what it had found is said no more, and what ranks say goes into the model all the same."""
    directory = new_run(world=1)
    judge = Finding(1)
    judge.finds = (HANG,)
    with ranks(directory, 1) as group, relayed(directory, judge=lambda *_: judge) as relaying:
        met(group)
        store = relaying._model.store
        until(lambda: store.changes.verdicts, "the verdict")
        judge.broken = True
        for number in range(1, 9):
            group[0].publish(wire.TOPIC_BEAT, beat(0, number))
        until(lambda: not store.changes.verdicts, "no verdict")
        until(lambda: store.ranks[0].step == 8, "all that the rank says")
    said = [event.text for event in read_events(directory.database) if isinstance(event, wire.Event)]
    assert len([text for text in said if "broken" in text]) == 2
    (verdict,) = read_verdicts(directory.database)
    assert verdict.until_at_ns is not None


def test_without_a_judge_there_are_no_verdicts(new_run: Callable[..., RunDir]) -> None:
    """As where NumPy cannot be loaded: that is said, and the run is shown and recorded as ever."""
    directory = new_run(world=1)

    def cannot(world: int, generation: int) -> Judge:
        raise ImportError("no NumPy")

    with ranks(directory, 1) as group, relayed(directory, judge=cannot) as relaying:
        met(group)
        group[0].publish(wire.TOPIC_BEAT, beat(0, 3))
        until(lambda: relaying._model.store.ranks[0].step == 3, "the rank to be heard")
    said = [event.text for event in read_events(directory.database) if isinstance(event, wire.Event)]
    assert [text for text in said if "no NumPy" in text] == ["relay, judging: ImportError('no NumPy')"]


def test_suspects_of_a_large_group_are_asked_for_their_records(new_run: Callable[..., RunDir]) -> None:
    """Their last ones, before those that they publish meanwhile; nobody else is asked."""
    directory = new_run(world=65)
    judge = Finding(65)
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
        until(lambda: [9] in judge.heard, "the records")
        assert [each for each in judge.heard if isinstance(each, list)] == [[7, 8], [9]]
        assert not group[0].is_asked()


def test_the_last_hang_is_kept_for_whoever_acts_or_tells_the_end(new_run: Callable[..., RunDir]) -> None:
    """As it was found last, with its end; that of other processes is none of these."""
    directory = new_run(world=1)
    judge = Finding(1)
    with ranks(directory, 1) as group, relayed(directory, judge=lambda *_: judge) as relaying:
        met(group)
        judge.finds = (HANG,)
        until(lambda: relaying.circumstances.hang, "the hang")
        judge.finds = ()

        def end() -> int | None:
            hang = relaying.circumstances.hang
            assert hang is not None
            return hang.until_at_ns

        until(end, "its end")
        relaying.follow(msgspec.structs.replace(directory.members()[0], generation=1))
        until(lambda: relaying.circumstances.hang is None, "other processes")
