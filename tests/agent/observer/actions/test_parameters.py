"""What the observer finds where it compares the checksums of all ranks."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from ddptop.agent import wire
from ddptop.agent.observer.actions.parameters import compared
from ddptop.agent.wire import Compared

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
