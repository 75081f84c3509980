"""The causes of growing memory, at the observer: which rank is asked, and when; by a clock that is moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from support.fakes.clocks import Clock

from ddptop.agent import wire
from ddptop.agent.observer.judge.growth import Cause
from ddptop.agent.observer.relay.growths import PATIENCE_S, Growths

GROWS = wire.Verdict(4, "memory_creep", "the memory of rank 2 grows", 100, rank=2)
ALL = wire.Verdict(5, "memory_creep", "the memory of every rank grows", 100)
GROWN = wire.ObjectKind("tensor", "Tensor", "float32", (8,), "cpu", 9, 1 << 20, 3, 1 << 20, "train.py:52")
FOUND = wire.MemoryUse(1, 10, (GROWN,), tensor_grown=1 << 20)
ACCUSED = ("memory_creep", 2, None)


class Asked:
    """Ranks that answer when the test says so."""

    def __init__(self) -> None:
        self.clock = Clock(0.0)
        forwarding: Any = self
        self.growths = Growths(forwarding, self.clock)
        self.questions: list[tuple[int, int]] = []
        """Ranks and the steps over which they were asked, since the last turn."""
        self.tokens: set[str] = set()
        self._asker: tuple[bytes, int, Callable[..., object]] | None = None

    def forward(self, asker: bytes, rank: int, command: wire.Memory, answer: Callable[..., object]) -> None:
        """Stand for the way to the ranks."""
        assert (command.number, command.first) == (0, 0)
        self.questions.append((rank, command.steps))
        self.tokens.add(command.token)
        self._asker = asker, rank, answer

    def turn(self, *verdicts: wire.Verdict) -> dict[Any, Cause]:
        """Let a second pass."""
        self.clock.now += 1
        self.questions.clear()
        return dict(self.growths.turn(verdicts))

    def answer(self, found: wire.MemoryUse | None = None, *, pending: bool = False) -> None:
        """Have the rank answer the last question to it."""
        assert self._asker is not None
        asker, rank, answer = self._asker
        answer(asker, rank, wire.Reply(0, found is not None, "", pending=pending, memory=found))


def test_of_a_healthy_run_no_rank_is_ever_asked() -> None:
    """Nor for other verdicts."""
    asked = Asked()
    assert asked.turn() == {}
    assert asked.turn(msgspec.structs.replace(GROWS, kind="slow_rank")) == {}
    assert asked.questions == []


def test_the_accused_rank_is_asked_until_it_has_answered_and_never_again() -> None:
    """It alone, with the same token each second."""
    asked = Asked()
    for _ in range(3):
        assert asked.turn(GROWS) == {}
        assert asked.questions == [(2, 10)]
        asked.answer(pending=True)
    assert len(asked.tokens) == 1
    asked.answer(FOUND)
    for _ in range(3):
        (cause,) = (found := asked.turn(GROWS)).values()
        assert list(found) == [ACCUSED]
        assert cause.line == "train.py:52"
        assert asked.questions == []


def test_where_all_grow_one_is_asked() -> None:
    """They run the same script."""
    asked = Asked()
    asked.turn(ALL)
    assert asked.questions == [(0, 10)]


def test_where_few_steps_show_nothing_it_is_asked_over_many_once() -> None:
    """And then that is the answer."""
    asked = Asked()
    asked.turn(GROWS)
    asked.answer(wire.MemoryUse(1, 10))
    asked.turn(GROWS)
    assert asked.questions == [(2, 100)]
    asked.answer(wire.MemoryUse(11, 110))
    for _ in range(3):
        assert asked.turn(GROWS) == {}
        assert asked.questions == []


def test_a_rank_that_cannot_or_does_not_answer_is_given_up() -> None:
    """Also where the run makes no steps."""
    asked = Asked()
    asked.turn(GROWS)
    asked.answer()
    assert asked.turn(GROWS) == {}
    assert asked.questions == []
    asked = Asked()
    asked.turn(GROWS)
    asked.clock.now += PATIENCE_S
    assert asked.turn(GROWS, ALL) == {}
    assert asked.questions == [(0, 10)]


def test_a_cause_that_an_earlier_observer_has_found_stays() -> None:
    """The successor asks nobody."""
    asked = Asked()
    known = msgspec.structs.replace(GROWS, line="train.py:52", cause="train.py:52 made 3 more")
    assert asked.turn(known) == {ACCUSED: Cause("train.py:52 made 3 more", "train.py:52")}
    assert asked.questions == []
