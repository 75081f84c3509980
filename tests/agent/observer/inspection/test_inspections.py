"""Who is asked where ranks stand, who is looked at, and when the answer comes: with agents and looks of the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from support.harness import DEADLINE_S, until

from ddptop.agent import wire
from ddptop.agent.observer.inspection.inspections import ANSWER_S, Inspections
from ddptop.agent.run.rundir import Member, Process, Run

RUN = Run("r", "id", "train.py", (), 4, None, None, 1, True, cwd="/home/ada")
Answer = Callable[[bytes, int, wire.Reply], object]


def told(rank: int, by: str = "agent", **more: Any) -> wire.Inspection:
    """Return where a rank stands."""
    return wire.Inspection(rank, 1, by, 100 + rank, **more)


class Bench:
    """Inspections, with a clock that is moved by hand and with ranks that answer when the test says so."""

    def __init__(self, world: int = 4) -> None:
        self.now = 0.0
        self.asked: dict[int, tuple[wire.Command, Answer]] = {}
        self.looks: list[dict[str, Any]] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.answers: list[dict[int, wire.Inspection]] = []
        self.made = Inspections(self.forward, lambda: None, RUN, clock=lambda: self.now, look=self.look)
        for rank in range(world):
            self.made.meet(Member(rank, rank, world, Process(100 + rank, 1.0), "host", 0, "", "", None))

    def forward(self, _: bytes, rank: int, command: wire.Command, answer: Answer) -> None:
        self.asked[rank] = command, answer

    def look(self, members: dict[int, Member], **how: Any) -> dict[int, wire.Inspection]:
        self.looks.append({"ranks": sorted(members), "now": self.now} | how)
        assert self.may_end.wait(DEADLINE_S)
        return {rank: told(rank, "py-spy", threads=(wire.Thread("seen"),), status="stopped") for rank in members}

    def ask(self, *ranks: int, stacks: bool = True, native: bool = False) -> None:
        self.made.ask(ranks, self.answers.append, stacks=stacks, native=native)

    def answer(self, rank: int, inspection: wire.Inspection | None) -> None:
        """Let the agent of a rank answer, or nobody for it."""
        self.asked.pop(rank)[1](b"", rank, wire.Reply(0, inspection is not None, inspection=inspection))

    def answered(self) -> dict[int, wire.Inspection]:
        """Turn until there is an answer, and return it."""

        def turned() -> bool:
            self.made.turn()
            return bool(self.answers)

        until(turned, "an answer")
        return self.answers.pop(0)


@pytest.fixture
def bench() -> Bench:
    """Return four ranks."""
    return Bench()


def test_agents_that_answer_are_not_looked_at(bench: Bench) -> None:
    """The answer comes on a later turn, once all have answered."""
    bench.ask(0, 1)
    assert bench.asked[0][0] == wire.Inspect(0, True, False)
    bench.answer(0, told(0))
    bench.made.turn()
    assert bench.answers == []
    bench.answer(1, told(1))
    assert bench.answers == []
    assert bench.answered() == {0: told(0), 1: told(1)}
    assert bench.looks == []
    assert bench.made.pause_s is None


def test_those_that_do_not_answer_are_looked_at_together(bench: Bench) -> None:
    """Silent, refused, told of another rank: all at once, with the run's script."""
    bench.ask(0, 1, 2, 3)
    bench.now = 0.5
    for rank, answer in enumerate((None, told(1), told(7), None)):
        bench.answer(rank, answer)
    found = bench.answered()
    assert {rank: each.by for rank, each in found.items()} == {0: "py-spy", 1: "agent", 2: "py-spy", 3: "py-spy"}
    assert bench.looks == [
        {"ranks": [0, 2, 3], "now": 0.5, "stacks": True, "native": False, "until": ANSWER_S,
         "script": "/home/ada/train.py"}
    ]  # fmt: skip


def test_native_frames_come_from_outside_and_the_rest_from_the_agent(bench: Bench) -> None:
    """The agent tells the collectives, the look the threads."""
    bench.ask(0, native=True)
    groups = (wire.GroupCalls("0", 7),)
    bench.answer(0, told(0, groups=groups, state="running", threads=(wire.Thread("by agent"),)))
    (found,) = bench.answered().values()
    assert (found.by, found.groups, found.state, found.status) == ("py-spy", groups, "running", "stopped")
    assert [thread.name for thread in found.threads] == ["seen"]
    assert bench.looks[0]["native"]


def test_where_native_frames_cannot_be_had_there_are_pythons(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason."""
    monkeypatch.setattr(bench.made, "_look", lambda members, **_: {0: told(0, "system", problem="no py-spy")})
    bench.ask(0, native=True)
    bench.answer(0, told(0, threads=(wire.Thread("by agent"),)))
    (found,) = bench.answered().values()
    assert (found.by, found.threads[0].name, found.problem) == ("agent", "by agent", "no py-spy")


def test_a_rank_that_was_never_found_is_not_in_the_answer(bench: Bench) -> None:
    """Also where it is the only one; the answer does not come while the question is asked."""
    bench.ask(9)
    assert bench.answers == []
    assert bench.answered() == {}


def test_questions_for_single_ranks_are_looked_into_together(bench: Bench) -> None:
    """Onlookers ask for each rank by itself: the second look is at all that wait, each asker gets its own."""
    bench.may_end.clear()
    for rank in (0, 1):
        bench.ask(rank)
        bench.answer(rank, None)
        bench.made.turn()
    bench.ask(2)
    bench.ask(3)
    bench.answer(2, None)
    bench.answer(3, None)
    bench.made.turn()
    until(lambda: len(bench.looks) == 2, "two looks at a time")
    bench.may_end.set()
    found = [rank for _ in range(4) for rank in bench.answered()]
    assert sorted(found) == [0, 1, 2, 3]
    assert sorted(each["ranks"] for each in bench.looks) == [[0], [1], [2, 3]]


def test_a_look_that_hangs_is_not_waited_for(bench: Bench) -> None:
    """What is known is told, with the reason for the rest; later questions are answered too, and never twice."""
    bench.may_end.clear()
    for rank in (0, 1):
        bench.ask(rank)
        bench.answer(rank, None)
        bench.made.turn()
    bench.ask(2, 3)
    bench.answer(2, told(2))
    bench.answer(3, None)
    bench.made.turn()
    until(lambda: len(bench.looks) == 2, "the looks to begin")
    pause = bench.made.pause_s
    assert pause is not None
    assert 0 < pause <= ANSWER_S + 1
    bench.now += pause + 0.01
    found = bench.answered() | bench.answered() | bench.answered()
    assert {rank: each.by for rank, each in found.items()} == {0: "system", 1: "system", 2: "agent", 3: "system"}
    assert "too many others wait" in found[3].problem
    bench.may_end.set()

    def over() -> bool:
        bench.made.turn()
        return not bench.made._busy

    until(over, "the looks to end")
    assert bench.answers == []


def test_a_look_that_fails_answers_all_the_same(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread's error is nobody else's."""
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: raised.append(told.exc_value))
    monkeypatch.setattr(bench.made, "_look", lambda *_, **__: 1 / 0)
    bench.ask(0)
    bench.answer(0, None)
    assert bench.answered()[0].by == "system"
    assert len(raised) == 1


def test_an_asker_that_fails_does_not_take_the_others_answers(bench: Bench) -> None:
    """The error is for the relay's wall; the next turn goes on."""

    def fail(_: object) -> None:
        raise ValueError("its own")

    bench.made.ask([0], fail, stacks=True)
    bench.answer(0, told(0))
    bench.ask(1)
    bench.answer(1, told(1))
    with pytest.raises(ValueError, match="its own"):
        bench.made.turn()
    assert bench.made.pause_s == 0.0
    assert bench.answered() == {1: told(1)}


def test_a_thousand_ranks_are_one_look(bench: Bench) -> None:
    """And one answer."""
    many = Bench(1024)
    many.ask(*range(1024), stacks=False)
    for rank in range(1024):
        many.answer(rank, None if rank % 2 else told(rank))
    found = many.answered()
    assert len(found) == 1024
    assert [len(each["ranks"]) for each in many.looks] == [512]
    assert msgspec.structs.replace(found[1], threads=()) == told(1, "py-spy", status="stopped")
