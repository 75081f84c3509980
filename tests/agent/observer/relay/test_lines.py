"""The lines behind verdicts, at the observer: which ranks are asked to look, and when; by a clock that is moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from support.fakes.clocks import Clock

from ddptop.agent import wire
from ddptop.agent.observer.judge.lines import Line
from ddptop.agent.observer.relay.lines import AGAIN_S, PATIENCE_S, Lines

SLOW = wire.Verdict(4, "slow_rank", "rank 2 holds the group back", 100, rank=2, phase="data", cost_ms=25.0)
OTHER = msgspec.structs.replace(SLOW, number=5, rank=3)
INPUT = wire.Verdict(6, "input_bound", "the input holds all ranks back", 100, phase="data", cost_ms=25.0)
ACCUSED = ("slow_rank", 2, "data")
DECODED = wire.Frame("decoded", "data.py", 20)


def looks(ms: float) -> tuple[wire.Looks, ...]:
    """Return looks at ten steps with so many ms in `decoded` each, and 10 elsewhere."""
    stacks = wire.Stack("data", (0,), int(ms * 10**7)), wire.Stack("forward", (), 10**8)
    return (wire.Looks(10, (DECODED,), stacks),)


class Asked:
    """Ranks that answer when the test says so."""

    def __init__(self) -> None:
        self.clock = Clock(0.0)
        forwarding: Any = self
        self.lines = Lines(forwarding, self.clock)
        self.modules: set[bool] = set()
        """Of the questions since the last turn: true for one that is for modules."""
        self.questions: list[tuple[int, int]] = []
        """Ranks and the tokens that they were asked with, since the last turn."""
        self._askers: dict[int, tuple[bytes, Callable[..., object]]] = {}

    def forward(self, asker: bytes, rank: int, command: wire.Look, answer: Callable[..., object]) -> None:
        """Stand for the way to the ranks."""
        self.questions.append((rank, command.token))
        self.modules.add(command.modules)
        self._askers[rank] = asker, answer

    def turn(self, *verdicts: wire.Verdict, ordinary: tuple[int, ...] = (0, 1)) -> dict[Any, Line]:
        """Let a second pass."""
        self.clock.now += 1
        self.questions.clear()
        self.modules.clear()
        return dict(self.lines.turn(verdicts, ordinary))

    def answer(self, rank: int, found: tuple[wire.Looks, ...] = ()) -> None:
        """Have a rank answer the last question to it; without looks: it still looks."""
        asker, answer = self._askers[rank]
        answer(asker, rank, wire.Reply(0, bool(found), "", pending=not found, looks=found))


def test_of_a_healthy_run_no_rank_is_ever_asked() -> None:
    """Nor for verdicts that are about no rank's code, or where no rank is ordinary."""
    asked = Asked()
    for kind in ("slow_host", "unequal_work", "no_core", "communication_bound", "memory_creep", "hang", "standing"):
        for verdicts in ((), (msgspec.structs.replace(SLOW, kind=kind),)):
            assert asked.turn(*verdicts) == {}
            assert asked.questions == []
    assert asked.turn(SLOW, ordinary=()) == {}
    assert asked.questions == []


def test_both_ranks_are_asked_until_they_have_looked_and_then_never_again() -> None:
    """With the same token each second, whoever has answered no more; the line is found once both have."""
    asked = Asked()
    assert asked.turn(SLOW) == {}
    assert asked.questions == [(0, 4), (2, 4)]
    asked.answer(0)
    asked.answer(2)
    assert asked.turn(SLOW) == {}
    assert asked.questions == [(0, 4), (2, 4)]
    asked.answer(0, looks(1))
    assert asked.turn(SLOW) == {}
    assert asked.questions == [(2, 4)]
    asked.answer(2, looks(26))
    for _ in range(3):
        (line,) = (found := asked.turn(SLOW)).values()
        assert list(found) == [ACCUSED]
        assert line.text == "data.py:20 decoded"
        assert asked.questions == []


def test_one_verdict_is_looked_at_after_the_other() -> None:
    """Ranks look at one thing at a time; the second is asked for once the first is answered, or gone."""
    asked = Asked()
    asked.turn(SLOW, OTHER)
    assert {token for _, token in asked.questions} == {4}
    asked.answer(0, looks(1))
    asked.answer(2, looks(26))
    assert ACCUSED in asked.turn(SLOW, OTHER)
    assert asked.questions == [(0, 5), (3, 5)]
    asked.turn(SLOW, INPUT)
    assert asked.questions == [(0, 6)]


def test_a_late_answer_is_not_taken_for_another_verdict() -> None:
    """The looks of a verdict that is over do not answer the question of the next one."""
    asked = Asked()
    asked.turn(SLOW)
    late = asked._askers[0]
    asked.turn(OTHER)
    late[1](late[0], 0, wire.Reply(0, True, "", looks=looks(1)))
    asked.turn(OTHER)
    assert asked.questions == [(0, 5), (3, 5)]


def test_ranks_that_do_not_look_are_given_up() -> None:
    """Of a run that makes no steps nobody is asked for ever; the next verdict has its turn."""
    asked = Asked()
    asked.turn(SLOW)
    asked.clock.now += PATIENCE_S
    assert asked.turn(SLOW, OTHER) == {}
    assert {token for _, token in asked.questions} == {5}


def test_a_verdict_whose_cost_was_not_seen_is_asked_for_once_more() -> None:
    """After a while, by another token so that the ranks look anew, as long as it stands; and then never again."""
    asked = Asked()
    for time_ in range(2):
        asked.turn(SLOW)
        assert [rank for rank, _ in asked.questions] == [0, 2]
        tokens = {token for _, token in asked.questions}
        assert (tokens == {SLOW.number}) is (time_ == 0)
        asked.answer(0, looks(1))
        asked.answer(2, looks(1))
        for _ in range(int(AGAIN_S)):
            assert asked.turn(SLOW) == {}
            assert asked.questions == []
    asked.clock.now += 10 * AGAIN_S
    assert asked.turn(SLOW) == {}
    assert asked.questions == []


def test_what_is_seen_the_second_time_is_named() -> None:
    """Also where the ranks had not looked the first time, those of a run that was paused; others have their turn."""
    asked = Asked()
    asked.turn(SLOW)
    asked.clock.now += PATIENCE_S
    asked.turn(SLOW)
    asked.clock.now += AGAIN_S
    asked.turn(SLOW)
    asked.answer(0, looks(1))
    asked.answer(2, looks(26))
    ((accusation, line),) = asked.turn(SLOW, OTHER).items()
    assert (accusation, line.text) == (ACCUSED, "data.py:20 decoded")
    assert {token for _, token in asked.questions} == {OTHER.number}


@pytest.mark.parametrize("phase", ["data", "backward", None])
def test_the_modules_of_a_slow_backward_pass_are_looked_for(phase: str | None) -> None:
    """With the same looks: nothing else shows what torch executes there."""
    asked = Asked()
    asked.turn(msgspec.structs.replace(SLOW, phase=phase))
    assert asked.modules == {phase == "backward"}


def test_what_all_ranks_wait_for_is_asked_of_one() -> None:
    """There is nobody to compare with."""
    asked = Asked()
    asked.turn(INPUT)
    assert asked.questions == [(0, 6)]
    asked.answer(0, looks(26))
    ((accusation, line),) = asked.turn(INPUT).items()
    assert (accusation, line.text) == (("input_bound", None, "data"), "data.py:20 decoded")


def test_the_peer_is_another_rank() -> None:
    """A rank that was ordinary in the meantime is not compared with itself."""
    asked = Asked()
    asked.turn(SLOW, ordinary=(2, 1))
    assert asked.questions == [(1, 4), (2, 4)]
    asked = Asked()
    asked.turn(SLOW, ordinary=(2,))
    assert asked.questions == []


def test_a_line_that_an_earlier_observer_has_found_stays() -> None:
    """The successor asks nobody."""
    asked = Asked()
    known = msgspec.structs.replace(SLOW, line="data.py:20 decoded", line_ms=24.0, line_share=0.96)
    assert asked.turn(known) == {ACCUSED: Line("data.py:20 decoded", 0.96)}
    assert asked.questions == []
