"""All ranks are asked for the same step, whatever they do meanwhile; and what is found where they are compared."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from support.fakes.acting import Acting, Rank

from ddptop.agent import wire
from ddptop.agent.observer.actions.checksums import compared
from ddptop.agent.observer.actions.diagnosis import AHEAD
from ddptop.agent.rank.ahead import Passed
from ddptop.agent.wire import Compared

HUNG = wire.Verdict(1, "hang", "rank 1 hangs: it sleeps", 1, hang=wire.Hang("stopped", (1,)))
GroupOf = Callable[..., Acting]


def checks(rank: Rank) -> SimpleNamespace:
    """Return what answers for a step that it was asked for before it was made."""
    asked: set[int] = set()

    def ask(step: int, completed: int) -> wire.Checksums | None:
        if step <= completed and step not in asked:
            raise Passed
        asked.add(step)
        return wire.Checksums(rank.rank, step, 0) if step <= completed else None

    return SimpleNamespace(ask=ask)


@pytest.fixture
def group_of(tmp_path: Path) -> Iterator[GroupOf]:
    """Make a group of ranks that have done so many steps, and make so many in a turn."""
    made: list[Acting] = []

    def make(*steps: int, pace: int = 1) -> Acting:
        made.append(Acting(tmp_path, *steps))
        for rank in made[-1].ranks:
            rank.pace, rank.checks = pace, checks(rank)
        return made[-1]

    yield make
    for each in made:
        each.close()


def step_of(group: Acting) -> int:
    """Ask for checksums, and return the step that all ranks tell of."""
    reply = group.act("checksum")
    assert reply.parameters is not None, reply.text
    return reply.parameters.step


def test_all_ranks_tell_of_the_same_step(group_of: GroupOf) -> None:
    """A little ahead of the furthest; they are asked, and nothing else is done with them, nor recorded."""
    group = group_of(10, 12, 11)
    assert step_of(group) == 12 + AHEAD[0]
    assert {type(command) for _, command in group.asked} == {wire.Check}
    assert group.texts == []


@pytest.mark.parametrize("pace", [5, 40, 300])
def test_fast_ranks_are_asked_for_a_step_further_ahead(group_of: GroupOf, pace: int) -> None:
    """Those that have passed the step before they were asked; all tell of the same one in the end."""
    assert step_of(group_of(10, 10, pace=pace)) > 10 + pace


def test_ranks_that_are_too_fast_for_any_step_are_refused_with_advice(group_of: GroupOf) -> None:
    """Rather than to ask for ever."""
    assert "--check-parameters 100" in group_of(10, 10, pace=2000).act("checksum").text


def test_what_is_waited_for_is_told_and_can_be_cancelled(group_of: GroupOf) -> None:
    """A rank that makes no step is named; after the patience it is refused, sooner where somebody cancels it."""
    group = group_of(10, 10)
    group.ranks[1].pace = 0
    asker = group.ask("checksum")
    assert group.waits() == f"waiting for rank 1 to make step {10 + AHEAD[0]}"
    assert group.cancel(asker)
    assert group.reply(asker).text == "cancelled; the run goes on"
    for hang, text in ((None, "rank 1 made no step within 60 s"), (HUNG, "rank 1 hangs: it sleeps")):
        group = group_of(10, 10)
        group.ranks[1].pace = 0
        group.second(hang=hang)
        assert text in group.act("checksum").text
        assert hang is None or group.clock.now < 2.0


def test_a_rank_that_goes_on_is_waited_for_longer_than_the_patience(group_of: GroupOf) -> None:
    """However far behind it is: the patience is that for its next step."""
    group = group_of(10, 60)
    group.each_turn = lambda: setattr(group.ranks[0], "pace", int(group.clock.now) % 50 == 0)
    assert step_of(group) == 60 + AHEAD[0]
    assert group.clock.now > 60.0


def test_ranks_that_come_to_no_common_step_are_refused(group_of: GroupOf) -> None:
    """Paused ones make no step, and are not asked; ranks far apart come to none together."""
    group = group_of(5, 5)
    group.act("pause")
    group.asked.clear()
    assert group.act("checksum").text.startswith("paused, and parameters are read at the end of a step")
    assert group.asked == []
    assert "do not share a step count" in group_of(5, 500).act("checksum").text


def test_a_rank_that_ends_meanwhile_is_left_out(group_of: GroupOf) -> None:
    """The others tell theirs."""
    group = group_of(10, 10, 10)
    group.ask("checksum")
    group.ranks[2].has_ended = True
    assert group.reply(b"ada-checksum").parameters is not None


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
