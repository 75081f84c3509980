"""All ranks are asked for the same step, whatever they do meanwhile; and what is found where they are compared."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence

import pytest
from msgspec.structs import replace

from ddptop.agent import wire
from ddptop.agent.observer.actions.ahead import AHEAD
from ddptop.agent.observer.actions.checksums import Checksums, compared
from ddptop.agent.observer.actions.polled import PolledRanks
from ddptop.agent.observer.actions.wait import Wait
from ddptop.agent.text import ranks_in_spans
from ddptop.agent.wire import Compared
from ddptop.agent.wire.refusals import Hung, Refused


class Ranks(PolledRanks):
    """Ranks that make some steps whenever somebody asks them or sleeps."""

    def __init__(self, *steps: int, pace: int = 1, of: Mapping[int, int] | None = None) -> None:
        super().__init__(range(len(steps)))
        self.completed = list(steps)
        self.pace = dict.fromkeys(range(len(steps)), pace) | dict(of or {})
        self.asked: list[set[int]] = [set() for _ in steps]
        self.held = False
        self.now = 0.0
        self.commands: set[type] = set()
        self.ended: set[int] = set()

    def move(self, seconds: float = 0.0) -> None:
        self.now += seconds + 0.001
        for rank, pace in self.pace.items():
            self.completed[rank] += pace

    def send(self, command: wire.Command, ranks: Collection[int], timeout_s: float) -> Mapping[int, wire.Reply]:
        self.move()
        self.commands.add(type(command))
        return {rank: self._answer(rank, command) for rank in ranks if rank not in self.ended}

    def _answer(self, rank: int, command: wire.Command) -> wire.Reply:
        completed = self.completed[rank]
        if isinstance(command, wire.Query):
            return wire.Reply(command.id, self.held, "", completed)
        assert isinstance(command, wire.Check)
        if command.step in self.asked[rank] and command.step <= completed:
            return wire.Reply(command.id, True, "", completed, checksums=wire.Checksums(rank, command.step, 0))
        if command.step <= completed:
            return wire.Reply(command.id, False, "has passed it", completed)
        self.asked[rank].add(command.step)
        return wire.Reply(command.id, False, "not yet", completed, pending=True)

    def departed(self) -> set[int]:
        return self.ended

    def unheard(self, ranks: Collection[int]) -> str:
        return ""

    def found(self, *, cancelled: bool = False, hang: str = "", patience_s: float = 60) -> dict[int, wire.Checksums]:
        self.wait = Wait(lambda: self.now, self.move)
        self.wait.is_cancelled, self.wait.hang = cancelled, hang
        return Checksums().gather(self, self.wait, patience_s)[1]


def test_all_ranks_tell_of_the_same_step() -> None:
    """A little ahead of the furthest; they are asked, and nothing else is done with them."""
    group = Ranks(10, 12, 11)
    found = group.found()
    assert {message.step for message in found.values()} == {13 + AHEAD[0]}
    assert sorted(found) == [0, 1, 2]
    assert group.commands == {wire.Query, wire.Check}


@pytest.mark.parametrize("pace", [5, 40, 300])
def test_fast_ranks_are_asked_for_a_step_further_ahead(pace: int) -> None:
    """Those that have passed the step before they were asked; all tell of the same one in the end."""
    group = Ranks(10, 10, pace=pace)
    (step,) = {message.step for message in group.found().values()}
    assert step > 10 + pace
    assert all(step in asked for asked in group.asked)


def test_ranks_that_are_too_fast_for_any_step_are_refused_with_advice() -> None:
    """Rather than to ask for ever."""
    with pytest.raises(Refused, match="--check-parameters 100"):
        Ranks(10, 10, pace=2000).found()


def test_what_is_waited_for_is_told_and_can_be_cancelled() -> None:
    """A rank that makes no step is named; after the patience it is refused, sooner where somebody cancels it."""
    group = Ranks(10, 10, of={1: 0})
    with pytest.raises(Refused, match="rank 1 made no step within 60 s"):
        group.found()
    assert group.wait.line == f"waiting for rank 1 to make step {11 + AHEAD[0]}"
    assert ranks_in_spans([7, 3]) == ranks_in_spans([3, 7]) == "ranks 3, 7"
    with pytest.raises(Refused, match="cancelled; the run goes on"):
        Ranks(10, 10, of={1: 0}).found(cancelled=True)


def test_a_rank_that_goes_on_is_waited_for_longer_than_the_patience() -> None:
    """However far behind it is: the patience is that for its next step."""
    group = Ranks(10, 60)
    found = group.found(patience_s=1.0)
    assert {message.step for message in found.values()} == {61 + AHEAD[0]}
    assert group.now > 2.0


def test_ranks_of_a_run_that_hangs_are_not_waited_for() -> None:
    """How it hangs is told within a second."""
    group = Ranks(10, 10, of={0: 0, 1: 0})
    with pytest.raises(Hung, match=r"^rank 1 hangs: it sleeps$"):
        group.found(hang="rank 1 hangs: it sleeps")
    assert group.now < 1.0


@pytest.mark.parametrize(("held", "steps", "why"), [(True, (5, 5), "paused"), (False, (5, 500), "do not share")])
def test_ranks_that_come_to_no_common_step_are_not_asked(held: bool, steps: tuple[int, ...], why: str) -> None:
    """Paused ones make no step, and ranks far apart none together."""
    group = Ranks(*steps)
    group.held = held
    with pytest.raises(Refused, match=why):
        group.found()
    assert group.commands == {wire.Query}


def test_a_rank_that_ends_meanwhile_is_left_out() -> None:
    """The others tell theirs."""
    group = Ranks(10, 10, 10)
    group.ended = {2}
    assert sorted(group.found()) == [0, 1]


NAMES = ("0.weight", "0.bias")


def module(*values: int, group: str = "0", number: int = 0, **more: int) -> wire.ModuleSums:
    sums = struct.pack(f"<{len(values)}q", *values)
    return wire.ModuleSums(group, number, 7, str(len(values)), sums, 2, NAMES[: len(values)], **more)


@pytest.mark.parametrize(
    ("ranks", "modules", "reasons"),
    [
        ([[module(1, 2)]] * 4, [Compared("0", 0, (0, 1, 2, 3), 2)], []),
        ([[module(1, 2)], [module(1, 2)], [module(1, 3)]],
         [Compared("0", 0, (0, 1, 2), 2, (2,), 1, "0.bias", "rank 2's parameters differ from the others': 0.bias")],
         []),
        # Two networks, one of which differs.
        ([[module(1, 2), module(5, number=1)], [module(1, 2), module(6, number=1)]],
         [Compared("0", 0, (0, 1), 2),
          Compared("0", 1, (0, 1), 1, (0, 1), 1, "0.weight", "the parameters of ranks 0 and 1 differ: 0.weight")],
         []),
        # A mesh of two groups, each with parameters of its own.
        ([[module(rank % 2, group=str(rank % 2))] for rank in range(4)],
         [Compared("0", 0, (0, 2), 1), Compared("1", 0, (1, 3), 1)], []),
        ([[module(1, group="")], [module(2, group="")]],
         [Compared("", 0, (0, 1), 1, (0, 1), 1, "0.weight", "the parameters of ranks 0 and 1 differ: 0.weight")], []),
        ([[module(group="", sharded=12)]] * 2, [],
         ["12 sharded parameters are not compared: each rank has a part of its own"]),
        # A rank that has skipped a step of the optimizer, and one whose network is another.
        ([[module(1, 2)], [module(1, 2)], [replace(module(3, 4), steps=6)], [module(1)]],
         [Compared("0", 0, (0, 1), 2)],
         ["rank 2 has a different number of optimizer steps than most ranks, and is not compared",
          "rank 3 has parameters of other names, shapes or types than most ranks, and is not compared"]),
        ([[], []], [], []),
    ],
)  # fmt: skip
def test_it_is_found_who_differs_and_in_what(
    ranks: Sequence[Sequence[wire.ModuleSums]], modules: list[Compared], reasons: list[str]
) -> None:
    """Each module is compared among the ranks on which it is the same one; what is not compared has a reason."""
    found = compared({rank: wire.Checksums(rank, 1234, 0, tuple(each)) for rank, each in enumerate(ranks)})
    assert found == wire.Parameters(1234, tuple(modules), tuple(reasons))
    reply = wire.read_answer(wire.encode(wire.Reply(1, True, parameters=found)))
    assert isinstance(reply, wire.Reply)
    assert reply.parameters == found
