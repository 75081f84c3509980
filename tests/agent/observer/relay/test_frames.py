"""The frames that a relay publishes of what its ranks say, as a foreign subscriber hears them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import pytest
import zmq
from support.fakes.onlookers import Onlooker
from support.fakes.ranks import Rank, beat, ranks, steps, summary
from support.fakes.relay import relayed
from support.harness import until

from ddptop.agent import wire
from ddptop.agent.observer.hosts.role import LinkedHosts
from ddptop.agent.observer.relay import frames as frames_module
from ddptop.agent.observer.relay import relay as relay_module
from ddptop.agent.record import recording
from ddptop.agent.run.rundir import RunDir

ALL_RANKS = wire.TOPIC_RANK + b"/"


@dataclasses.dataclass
class Looker:
    """An onlooker, and the frames that it has heard, in order."""

    onlooker: Onlooker

    def heard(self) -> list[tuple[bytes, wire.RunFrame | wire.RankFrame | wire.Rows]]:
        return [(topic, wire.read_frame(payload)) for topic, payload in self.onlooker.listen()]


@pytest.fixture
def looker() -> Iterator[Callable[..., Looker]]:
    """Make onlookers, in a context of their own."""
    made: list[Onlooker] = []
    with zmq.Context() as context:

        def make(directory: RunDir, *topics: bytes) -> Looker:
            made.append(Onlooker(context, directory, *topics))
            return Looker(made[-1])

        yield make
        for each in made:
            each.sub.close()
            each.cmd.close()


def met(group: list[Rank]) -> None:
    """Let all ranks be found, and say how they are."""
    for number, rank in enumerate(group):
        rank.meet(wire.TOPIC_BEAT)
        rank.fill()
        rank.publish(wire.TOPIC_BEAT, beat(number, 1))


def _is_recorded(directory: RunDir, state: str) -> bool:
    run, _ = recording.read_frames(directory.database)
    return run is not None and run.state == state


def test_who_has_the_frame_of_the_run_has_those_of_its_ranks(
    new_run: Callable[..., RunDir], looker: Callable[..., Looker]
) -> None:
    """A newcomer hears each rank before the run; the numbers are those that the ranks have told."""
    directory = new_run(world=2)
    with ranks(directory, 2) as group, relayed(directory):
        met(group)
        for number in range(2):
            group[number].publish(wire.TOPIC_STEPS, steps(number, 1, 2, 3))
        look = looker(directory, wire.TOPIC_RUN, ALL_RANKS)
        until(lambda: any(type(each) is wire.RunFrame for _, each in look.heard()), "a frame of the run")
        first = [type(each).__name__ for _, each in look.heard()]
        assert first.index("RunFrame") == 2
        assert [topic for topic, _ in look.heard()[:3]] == [b"rank/00000", b"rank/00001", wire.TOPIC_RUN]

        def losses() -> set[tuple[float | None, ...]]:
            return {each.losses for _, each in look.heard() if isinstance(each, wire.RankFrame) and each.losses}

        expected = tuple(each.loss for each in steps(0, 1, 2, 3).steps)
        until(lambda: expected in losses(), "the losses of the records")


def test_of_a_large_group_come_rows_and_more_of_a_rank_in_sight(
    new_run: Callable[..., RunDir], looker: Callable[..., Looker]
) -> None:
    """A newcomer is told of all ranks, later of each once a second; more comes of one in sight alone."""
    directory = new_run(world=300)
    with ranks(directory, 2) as group, relayed(directory):
        met(group)
        look = looker(directory, wire.TOPIC_RUN, wire.TOPIC_RANKS)

        def rows() -> list[wire.Rows]:
            return [each for _, each in look.heard() if isinstance(each, wire.Rows)]

        until(lambda: len({rank.rank for each in rows() for rank in each.ranks}) == 300, "all ranks")
        told = len(rows())
        group[1].publish(wire.TOPIC_SUMMARY, summary(1, 7))
        until(lambda: any(rank.step == summary(1, 7).step for each in rows()[told:] for rank in each.ranks), "the rank")
        look.onlooker.sub.subscribe(wire.topic_of(wire.TOPIC_RANK, 1))
        until(lambda: any(topic == b"rank/00001" for topic, _ in look.heard()), "the rank in sight")
        assert not [topic for topic, _ in look.heard() if topic == b"rank/00000"]


def test_a_frame_has_all_that_has_come_by_then(
    new_run: Callable[..., RunDir], looker: Callable[..., Looker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ranks have published is taken in for each frame, and not in between."""
    directory = new_run(world=1)
    with ranks(directory, 1) as group, relayed(directory) as relay:
        met(group)
        look = looker(directory, wire.TOPIC_RUN, ALL_RANKS)
        until(lambda: relay._verdicts.begun, "the judge")
        until(lambda: any(getattr(each, "state", "") == "running" for _, each in look.heard()), "the state to stay")
        monkeypatch.setattr(relay_module, "EVERY_S", 1e6)
        monkeypatch.setattr(relay_module, "PERIOD_S", 1e6)
        done: list[str] = []

        def noted(name: str, call: Callable[[], object]) -> Callable[[], object]:
            def note() -> object:
                done.append(name)
                return call()

            return note

        monkeypatch.setattr(relay._intake, "drain", noted("take in", relay._intake.drain))
        monkeypatch.setattr(relay._model.framer, "frame", noted("frame", relay._model.framer.frame))
        until(lambda: done.count("frame") > 3, "frames")
        turns = done[done.index("frame") :]
        assert turns == ["frame", "take in"] * (len(turns) // 2) + ["frame"] * (len(turns) % 2)
        group[0].publish(wire.TOPIC_STEPS, steps(0, 1, 2, 3))
        until(
            lambda: any(isinstance(each, wire.RankFrame) and each.losses for _, each in look.heard()),
            "the losses of the records",
        )


def test_no_frame_is_made_while_nobody_looks_on(
    new_run: Callable[..., RunDir], looker: Callable[..., Looker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the record, now and then; the model moves on all the same, so that what changes has its own time."""
    monkeypatch.setattr(frames_module, "UNWATCHED_S", 0.05)
    monkeypatch.setattr(frames_module, "RECORD_S", math.inf)
    directory = new_run(world=2)
    with ranks(directory, 2) as group, relayed(directory) as relay:
        met(group)
        until(partial(_is_recorded, directory, "running"), "the first frames of the record")
        model, made = relay._model, []
        make = model.framer.frame

        def counted() -> wire.RunFrame:
            made.append(model.store.situation.at)
            return make()

        monkeypatch.setattr(model.framer, "frame", counted)
        began = model.store.situation.at
        until(lambda: model.store.situation.at > began, "a later moment of the model")
        assert made == []
        look = looker(directory, wire.TOPIC_RANK + b"/00001")
        until(lambda: look.heard(), "a frame of the one rank that is subscribed to")
        assert made
        assert {topic for topic, _ in look.heard()} == {b"rank/00001"}


def test_the_state_of_a_rank_here_is_news_for_the_observer_of_another_host(
    new_run: Callable[..., RunDir], looker: Callable[..., Looker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the ranks here come at once with it, and not with the next frame."""
    monkeypatch.setattr(LinkedHosts, "own_ranks", property(lambda _: [0]))
    directory = new_run(world=2)
    with ranks(directory, 2) as group, relayed(directory):
        met(group)
        look = looker(directory, wire.TOPIC_RANKS)

        def is_shown(state: str) -> bool:
            rows = [each for _, each in look.heard() if isinstance(each, wire.Rows)]
            return bool(rows) and [(each.rank, each.state) for each in rows[-1].ranks] == [(0, state)]

        until(lambda: is_shown("running"), "rows of the ranks here alone")
        for name in ("UNWATCHED_S", "EVERY_S", "SOON_S"):
            monkeypatch.setattr(frames_module, name, 1e6)
        told = len(look.heard())
        until(lambda: len(look.heard()) > told, "the row that was due already")
        held = msgspec.structs.replace(beat(0, 2), state="paused", held_at_ns=1)
        group[0].publish(wire.TOPIC_BEAT, held)
        until(lambda: is_shown("paused"), "its new state")


@pytest.mark.parametrize("world", [2, 300])
def test_the_last_frames_are_recorded(
    new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    """Now and then while it lives, and at the end with the end itself and its events."""
    monkeypatch.setattr(frames_module, "RECORD_S", 0.05)
    directory = new_run(world=world)
    with ranks(directory, 2) as group, relayed(directory, finish=False) as relay:
        met(group)
        recorded = partial(recording.read_frames, directory.database)

        def has_step() -> bool:
            run, of_ranks = recorded()
            return run is not None and len(of_ranks) == world and of_ranks[1].step == 1

        until(has_step, "the first step of the last rank")
        ended = msgspec.structs.replace(
            directory.read(), state="failed", exit_code=3, ended_at_ns=9 * 10**9, cause="rank 1: gone", cause_rank=1
        )
        relay.events.say("run failed: rank 1: gone", "error")
        relay.finish(run=ended)
    run, of_ranks = recorded()
    assert run is not None
    assert (run.state, run.exit_code, run.ended_at, run.cause_rank) == ("failed", 3, 9.0, 1)
    assert run.events[-1].text == "run failed: rank 1: gone"
    assert [each.rank for each in of_ranks.values()] == list(range(world))
    assert [of_ranks[rank].step for rank in range(2)] == [1, 1]


def test_a_change_of_state_is_recorded_at_once(new_run: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the record while nobody answers sees no pause that is over."""
    directory = new_run(world=1)
    with ranks(directory, 1) as group, relayed(directory):
        met(group)

        until(partial(_is_recorded, directory, "running"), "the first frames")
        monkeypatch.setattr(frames_module, "RECORD_S", 1e6)
        for state in ("paused", "running", "paused"):
            group[0].publish(wire.TOPIC_BEAT, msgspec.structs.replace(beat(0, 1), state=state))
            until(partial(_is_recorded, directory, state), state)
