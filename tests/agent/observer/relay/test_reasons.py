"""The reasons for verdicts, at the observer: which ranks are asked, and when; by a clock that is moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from support.fakes.clocks import Clock

from ddptop.agent import wire
from ddptop.agent.observer.judge.growth import Cause
from ddptop.agent.observer.judge.intervals import Reason
from ddptop.agent.observer.judge.lines import Line
from ddptop.agent.observer.relay.reasons import STEPS, Growths, Lines, Questions

SLOW = wire.Verdict(4, "slow_rank", "rank 2 holds the group back", 100, rank=2, phase="data", cost_ms=25.0)
OTHER = msgspec.structs.replace(SLOW, number=5, rank=3)
INPUT = wire.Verdict(6, "input_bound", "the input holds all ranks back", 100, phase="data", cost_ms=25.0)
ACCUSED = ("slow_rank", 2, "data")
GROWING = ("memory_creep", 2, None)
DECODED = wire.Frame("decoded", "data.py", 20)


def looks(ms: float) -> tuple[wire.Looks, ...]:
    """Return looks at ten steps with so many ms in `decoded` each, and 10 elsewhere."""
    stacks = wire.Stack("data", (0,), int(ms * 10**7)), wire.Stack("forward", (), 10**8)
    return (wire.Looks(10, (DECODED,), stacks),)


GROWS = wire.Verdict(4, "memory_creep", "the memory of rank 2 grows", 100, rank=2)
ALL = wire.Verdict(5, "memory_creep", "the memory of every rank grows", 100)
GROWN = wire.ObjectKind("tensor", "Tensor", "float32", (8,), "cpu", 9, 1 << 20, 3, 1 << 20, "train.py:52")
FOUND = wire.MemoryUse(1, 10, (GROWN,), tensor_grown=1 << 20)
PENDING = wire.Reply(0, False, "not yet", pending=True)


def looked(ms: float) -> wire.Reply:
    return wire.Reply(0, True, looks=looks(ms))


def counted(use: wire.MemoryUse) -> wire.Reply:
    return wire.Reply(0, True, memory=use)


class Asked:
    """Ranks that answer when the test says so."""

    def __init__(self, kind: type[Questions] = Lines) -> None:
        self.clock = Clock(0.0)
        forwarding: Any = self
        self._questions = kind(forwarding, self.clock)
        self.questions: list[tuple[int, int]] = []
        """Since the last turn: ranks, and the tokens of their looks, or the steps between their censuses."""
        self.modules: set[bool] = set()
        """Of looks since the last turn: true for those that are at modules, too."""
        self.tokens: set[str] = set()
        """Of all censuses."""
        self._askers: dict[int, tuple[bytes, Callable[..., object]]] = {}

    def forward(self, asker: bytes, rank: int, command: wire.Command, answer: Callable[..., object]) -> None:
        """Stand for the way to the ranks."""
        if isinstance(command, wire.Look):
            self.questions.append((rank, command.token))
            self.modules.add(command.modules)
        else:
            assert isinstance(command, wire.Memory)
            assert (command.number, command.first) == (0, 0)
            self.questions.append((rank, command.steps))
            self.tokens.add(command.token)
        self._askers[rank] = asker, answer

    def turn(self, *verdicts: wire.Verdict, ordinary: tuple[int, ...] = (0, 1)) -> dict[Any, Reason]:
        """Let a second pass."""
        self.clock.now += 1
        self.questions.clear()
        self.modules.clear()
        return dict(self._questions.turn(verdicts, ordinary))

    def answer(self, rank: int, reply: wire.Reply = PENDING) -> None:
        """Have a rank answer the last question to it."""
        asker, answer = self._askers[rank]
        answer(asker, rank, reply)


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
    asked.answer(0, looked(1))
    assert asked.turn(SLOW) == {}
    assert asked.questions == [(2, 4)]
    asked.answer(2, looked(26))
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
    asked.answer(0, looked(1))
    asked.answer(2, looked(26))
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
    late[1](late[0], 0, looked(1))
    asked.turn(OTHER)
    assert asked.questions == [(0, 5), (3, 5)]


def test_ranks_that_do_not_look_are_given_up() -> None:
    """Of a run that makes no steps nobody is asked for ever; the next verdict has its turn."""
    asked = Asked()
    asked.turn(SLOW)
    asked.clock.now += Lines.patience_s
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
        asked.answer(0, looked(1))
        asked.answer(2, looked(1))
        for _ in range(int(Lines.again_s)):
            assert asked.turn(SLOW) == {}
            assert asked.questions == []
    asked.clock.now += 10 * Lines.again_s
    assert asked.turn(SLOW) == {}
    assert asked.questions == []


def test_what_is_seen_the_second_time_is_named() -> None:
    """Also where the ranks had not looked the first time, those of a run that was paused; others have their turn."""
    asked = Asked()
    asked.turn(SLOW)
    asked.clock.now += Lines.patience_s
    asked.turn(SLOW)
    asked.clock.now += Lines.again_s
    asked.turn(SLOW)
    asked.answer(0, looked(1))
    asked.answer(2, looked(26))
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
    asked.answer(0, looked(26))
    ((accusation, line),) = asked.turn(INPUT).items()
    assert (accusation, line.text) == (("input_bound", None, "data"), "data.py:20 decoded")


def test_a_peer_that_cannot_look_is_no_sign_that_all_are_alike() -> None:
    """Without its looks there is no line."""
    asked = Asked()
    asked.turn(SLOW)
    asked.answer(0, wire.Reply(0, False, "it cannot"))
    asked.answer(2, looked(26))
    assert asked.turn(SLOW) == {}
    assert asked.questions == []


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


def test_for_other_verdicts_nobody_takes_a_census() -> None:
    """Nor in a healthy run."""
    asked = Asked(Growths)
    assert asked.turn() == {}
    assert asked.turn(msgspec.structs.replace(GROWS, kind="slow_rank")) == {}
    assert asked.questions == []


def test_the_rank_that_grows_is_asked_until_it_has_answered_and_never_again() -> None:
    """It alone, with the same token each second."""
    asked = Asked(Growths)
    for _ in range(3):
        assert asked.turn(GROWS) == {}
        assert asked.questions == [(2, 10)]
        asked.answer(2)
    assert len(asked.tokens) == 1
    asked.answer(2, counted(FOUND))
    for _ in range(3):
        (cause,) = (found := asked.turn(GROWS)).values()
        assert list(found) == [GROWING]
        assert isinstance(cause, Cause)
        assert cause.line == "train.py:52"
        assert asked.questions == []


def test_where_all_grow_one_is_asked() -> None:
    """They run the same script."""
    asked = Asked(Growths)
    asked.turn(ALL)
    assert asked.questions == [(0, 10)]


def test_where_few_steps_show_nothing_it_is_asked_over_many_once() -> None:
    """And then that is the answer."""
    asked = Asked(Growths)
    asked.turn(GROWS)
    asked.answer(2, counted(wire.MemoryUse(1, 10)))
    asked.turn(GROWS)
    assert asked.questions == [(2, 100)]
    asked.answer(2, counted(wire.MemoryUse(11, 110)))
    for _ in range(3):
        assert asked.turn(GROWS) == {}
        assert asked.questions == []


def test_a_rank_that_cannot_answer_is_asked_once_more_and_then_given_up() -> None:
    """So is one of a run that makes no steps, after a while; one that is only not heard is asked again each second."""
    asked = Asked(Growths)
    for steps in STEPS:
        for _ in range(2):
            asked.turn(GROWS)
            assert asked.questions == [(2, steps)]
            asked.answer(2, wire.Reply(0, False, "it does not answer", refusal="unheard"))
        asked.answer(2, wire.Reply(0, False, "its script uses tracemalloc"))
    assert asked.turn(GROWS) == {}
    assert asked.questions == []
    asked = Asked(Growths)
    for _ in STEPS:
        asked.turn(GROWS)
        asked.clock.now += Growths.patience_s
    assert asked.turn(GROWS, ALL) == {}
    assert asked.questions == [(0, 10)]


def test_a_cause_that_an_earlier_observer_has_found_stays() -> None:
    """The successor asks nobody."""
    asked = Asked(Growths)
    known = msgspec.structs.replace(GROWS, line="train.py:52", cause="train.py:52 made 3 more")
    assert asked.turn(known) == {GROWING: Cause("train.py:52 made 3 more", "train.py:52")}
    assert asked.questions == []
