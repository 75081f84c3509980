"""What `ddptop checksum` says of the parameters of all ranks."""

from __future__ import annotations

import json

import pytest

from ddptop.agent.wire import Compared, Parameters
from ddptop.tui.control.checksums import NOTHING, as_json, differ, lines

BIAS = Compared("0", 0, (0, 1, 2), 2, (2,), 1, "0.bias", "rank 2's parameters differ from the others': 0.bias")
WEIGHT = "the parameters of ranks 0 and 1 differ: 0.weight"


@pytest.mark.parametrize(
    ("found", "said", "differs"),
    [
        (Parameters(1234, (Compared("0", 0, (0, 1, 2, 3), 2),)),
         ["step 1,234: the parameters of 4 ranks are equal: 2 tensors"], False),
        (Parameters(1234, (BIAS,)), ["step 1,234: rank 2's parameters differ from the others': 0.bias"], True),
        # Two networks, one of which differs.
        (Parameters(1234, (Compared("0", 0, (0, 1), 2), Compared("0", 1, (0, 1), 1, (0, 1), 1, "0.weight", WEIGHT))),
         [f"step 1,234: {WEIGHT}", "step 1,234: the other parameters of 2 ranks are equal: 2 tensors"], True),
        # A mesh of two groups, each with parameters of its own.
        (Parameters(1234, (Compared("0", 0, (0, 2), 1), Compared("1", 0, (1, 3), 1))),
         ["step 1,234: the parameters of 4 ranks are equal: 1 tensor"], False),
        (Parameters(1234, (Compared("", 0, (0, 1), 1, (0, 1), 1, "0.weight", WEIGHT),)),
         [f"step 1,234: {WEIGHT}; they are not wrapped in DDP, and may be meant to differ"], False),
        (Parameters(1234, (), ("12 sharded parameters are not compared: each rank has a part of its own",)),
         [f"step 1,234: {NOTHING}", "12 sharded parameters are not compared: each rank has a part of its own"], False),
        (Parameters(1234, (Compared("0", 0, (0, 1), 2),), ("rank 2 is not compared", "rank 3 is not compared")),
         ["step 1,234: the parameters of 2 ranks are equal: 2 tensors", "rank 2 is not compared",
          "rank 3 is not compared"], False),
        (Parameters(1234), [f"step 1,234: {NOTHING}"], False),
    ],
)  # fmt: skip
def test_the_lines_say_who_differs_and_in_what(found: Parameters, said: list[str], differs: bool) -> None:
    """Said to differ is only what DDP keeps the same; what is not compared is said."""
    assert (lines(found), differ(found)) == (said, differs)


def test_the_json_has_the_same() -> None:
    """A list of modules, each with the ranks and tensors that differ; it is what the manual says."""
    equal = Compared("", 1, (0, 1, 2), 4)
    found = json.loads(json.dumps(as_json(Parameters(1234, (BIAS, equal), ("a part of its own",)), "toy")))
    assert found == {
        "run": "toy",
        "step": 1234,
        "differ": True,
        "modules": [
            {
                "group": "0", "module": 0, "ranks": [0, 1, 2], "tensors": 2, "differing_ranks": [2],
                "differing_tensors": 1, "first": "0.bias",
            },
            {
                "group": None, "module": 1, "ranks": [0, 1, 2], "tensors": 4, "differing_ranks": [],
                "differing_tensors": 0, "first": None,
            },
        ],
        "not_compared": ["a part of its own"],
    }  # fmt: skip
