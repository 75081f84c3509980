"""Whole steps as an onlooker has them: what is in sight is asked for, around the step that is shown."""

from __future__ import annotations

import pytest
from support.values.histories import Kept

from ddptop.agent import wire
from ddptop.agent.client.history.asked import SIGHT_S
from ddptop.agent.client.history.history import History
from ddptop.agent.client.history.steps import AROUND, EDGE_S

BOTH = frozenset({0, 1})
MS = 10**6


class Scene:
    """An observer's record of two ranks, and an onlooker; questions go back and forth when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.kept = Kept(2)
        self.history = History(2, lambda: self.now)
        self.steps = self.history.steps
        self.answered: list[wire.HistoryAnswer] = []
        self.exchange()

    def train(self, *numbers: int, ranks: tuple[int, ...] = (0, 1), generation: int = 0) -> None:
        """Let ranks make steps of 100 ms."""
        for number in numbers:
            for rank in ranks:
                record = wire.Step(number, number, number * 100 * MS, 100 * MS, 0, 0, 0, 0, 0, 0)
                self.kept.take(rank, record, generation=generation)

    def exchange(self, seconds: float = 0.0) -> list[wire.WholeSteps]:
        """Let questions and answers go back and forth once, so many seconds later; return those about whole steps."""
        self.now += seconds
        queries = self.history.asked.wanted()
        for query in queries:
            for each in self.kept.answer(query):
                self.answered.append(each)
                self.history.asked.take(wire.read_history(wire.encode(each)))
        return [query for query in queries if isinstance(query, wire.WholeSteps)]

    def shown(self, number: int) -> list[int]:
        """Return the ranks that are shown of a step, as a view that goes through the steps reads it."""
        self.steps.numbers(BOTH)
        return sorted(self.steps.step(BOTH, number))


def test_the_newest_step_is_there_after_one_question_and_is_followed() -> None:
    """With those before it; what has come since is asked for while it is in sight, and nothing twice."""
    scene = Scene()
    scene.train(*range(1, 101))
    assert scene.steps.numbers(BOTH) == ()
    assert not scene.history.complete
    assert len(scene.exchange()) == 1
    assert scene.steps.numbers(BOTH) == tuple(range(1, 101))
    assert scene.shown(100) == [0, 1]
    assert scene.history.complete
    scene.train(101, 102)
    assert scene.exchange(EDGE_S / 2) == []
    scene.answered.clear()
    assert len(scene.exchange(EDGE_S)) == 1
    sent = [each.step.step for part in scene.answered if isinstance(part, wire.AlignedSteps) for each in part.steps]
    assert sent == [102, 102, 101, 101]
    assert scene.shown(102) == [0, 1]
    assert scene.exchange(SIGHT_S + 1) == [], "out of sight"


def test_whoever_goes_back_finds_the_steps_there() -> None:
    """Those around the step that is shown are asked for before a key needs them; after a leap, once."""
    scene = Scene()
    scene.train(*range(1, 201))
    scene.steps.numbers(BOTH)
    scene.exchange()
    for number in range(200, 150, -1):
        assert scene.shown(number) == [0, 1]
        scene.exchange(0.01)
    assert scene.shown(20) == []
    assert not scene.history.complete
    (leap,) = scene.exchange()
    assert (leap.first, leap.last) == (20 - AROUND, 20)
    assert scene.shown(20) == [0, 1]
    assert scene.history.complete
    scene.exchange()
    for number in range(21, 60):
        assert scene.shown(number) == [0, 1]
        scene.exchange(0.01)


def test_one_rank_has_all_that_is_kept() -> None:
    """Its own screen shows all calls of the newest steps, and asks for those that it has not."""
    scene = Scene()
    scene.train(*range(1, 301))
    assert scene.steps.of(1) == []
    scene.exchange()
    assert [each.step.step for each in scene.steps.of(1)] == list(range(61, 301))
    scene.train(301, 302, 303)
    (query,) = scene.exchange(EDGE_S)
    assert query.first == 301
    assert [each.step.step for each in scene.steps.of(1)] == list(range(64, 304))


@pytest.mark.parametrize("again", [0, 1])
def test_a_restart_forgets_the_steps(again: int) -> None:
    """Those of a later generation are no others' steps, nor are those of a count that has begun anew."""
    scene = Scene()
    scene.train(*range(1, 10))
    scene.steps.numbers(BOTH)
    scene.exchange()
    old = scene.steps.step(BOTH, 3)
    scene.train(*range(1, 5), generation=again)
    scene.exchange(EDGE_S)
    assert scene.steps.numbers(BOTH) == (1, 2, 3, 4)
    scene.exchange()
    assert scene.steps.step(BOTH, 3) is not old


def test_a_rank_that_comes_late_to_a_step_is_shown_then() -> None:
    """As long as no step is whole, the newest of any rank is asked for again."""
    scene = Scene()
    scene.train(1, ranks=(0,))
    scene.steps.numbers(BOTH)
    scene.exchange()
    assert scene.shown(1) == [0]
    scene.train(1, ranks=(1,))
    scene.exchange(EDGE_S)
    assert scene.shown(1) == [0, 1]


def test_an_ended_run_answers_at_once_and_is_not_asked_again() -> None:
    """Its file answers in place of the observer; without one nothing is awaited."""
    scene = Scene()
    scene.train(*range(1, 31))
    scene.history.asked.end(scene.kept.answer)
    assert scene.steps.numbers(BOTH) == tuple(range(1, 31))
    assert scene.shown(30) == [0, 1]
    assert scene.shown(2) == [0, 1]
    scene.now += 10
    assert scene.shown(2) == [0, 1]
    assert scene.exchange() == []
    nothing = History(2)
    nothing.asked.end()
    assert nothing.steps.numbers(BOTH) == ()
    assert nothing.complete


def test_what_cannot_be_answered_is_not_awaited_for_ever() -> None:
    """A record that is being read is; one that cannot be read is said to have nothing."""
    scene = Scene()
    scene.train(1)
    scene.kept.is_read = False
    scene.steps.numbers(BOTH)
    scene.exchange()
    assert not scene.history.complete
    scene.kept.is_read = True
    scene.exchange(EDGE_S)
    assert scene.steps.numbers(BOTH) == (1,)
    other = History(2)
    other.steps.numbers(BOTH)
    for query in other.asked.wanted():
        other.asked.take(wire.Extent(query.id))
        other.asked.take(wire.Reply(query.id, False, "the record cannot be read"))
    assert other.complete
