"""What `ddptop checksum` says of the checksums of all ranks."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from ddptop.agent import wire
from ddptop.tui.control.checksums import NOTHING, outcome

NAMES = ("0.weight", "0.bias")


def module(*values: int, group: str = "0", number: int = 0, **more: int) -> wire.ModuleSums:
    sums = struct.pack(f"<{len(values)}q", *values)
    return wire.ModuleSums(group, number, 7, str(len(values)), sums, 2, NAMES[: len(values)], **more)


def told(*ranks: Sequence[wire.ModuleSums]) -> dict[int, wire.Checksums]:
    return {rank: wire.Checksums(rank, 1234, 0, tuple(modules)) for rank, modules in enumerate(ranks)}


@pytest.mark.parametrize(
    ("ranks", "lines", "differs"),
    [
        ([[module(1, 2)]] * 4, ["step 1,234: the parameters of 4 ranks are equal: 2 tensors"], False),
        ([[module(1, 2)], [module(1, 2)], [module(1, 3)]],
         ["step 1,234: rank 2's parameters differ from the others': 0.bias"], True),
        # Two networks, one of which differs.
        ([[module(1, 2), module(5, number=1)], [module(1, 2), module(6, number=1)]],
         ["step 1,234: the parameters of ranks 0 and 1 differ: 0.weight",
          "step 1,234: the other parameters of 2 ranks are equal: 2 tensors"], True),
        # A mesh of two groups, each with parameters of its own.
        ([[module(rank % 2, group=str(rank % 2))] for rank in range(4)],
         ["step 1,234: the parameters of 4 ranks are equal: 1 tensor"], False),
        ([[module(1, group="")], [module(2, group="")]],
         ["step 1,234: the parameters of ranks 0 and 1 differ: 0.weight; they are not wrapped in DDP, and may be "
          "meant to differ"], False),
        ([[module(group="", sharded=12)]] * 2,
         [f"step 1,234: {NOTHING}", "12 sharded parameters are not compared: each rank has a part of its own"], False),
        # A rank that has skipped a step of the optimizer, and one whose network is another.
        ([[module(1, 2)], [module(1, 2)], [replace(module(3, 4), steps=6)], [module(1)]],
         ["step 1,234: the parameters of 2 ranks are equal: 2 tensors",
          "rank 2 has a different number of optimizer steps than most ranks, and is not compared",
          "rank 3 has parameters of other names, shapes or types than most ranks, and is not compared"], False),
        ([[], []], [f"step 1,234: {NOTHING}"], False),
    ],
)  # fmt: skip
def test_the_lines_say_who_differs_and_in_what(
    ranks: Sequence[Sequence[wire.ModuleSums]], lines: list[str], differs: bool
) -> None:
    """Told as different is only what DDP keeps the same; what is not compared is said."""
    found = outcome(told(*ranks))
    assert (found.lines(), found.differs) == (lines, differs)


def test_the_json_has_the_same() -> None:
    """A list of modules, each with the ranks and tensors that differ; it is what the manual says."""
    found = json.loads(json.dumps(outcome(told([module(1, 2)], [module(1, 2)], [module(4, 3)])).as_json("toy")))
    assert found == {
        "run": "toy",
        "step": 1234,
        "differ": True,
        "modules": [
            {
                "group": "0", "module": 0, "ranks": [0, 1, 2], "tensors": 2, "differing_ranks": [2],
                "differing_tensors": 2, "first": "0.weight",
            }
        ],
        "not_compared": [],
    }  # fmt: skip
