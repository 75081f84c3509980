"""Own times against the profiler's own sums, and two ranks compared."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.values import traces
from support.values.traces import kineto, rank, spent, step

from ddptop.agent.record.profiles import operators, parts, trace
from ddptop.agent.record.profiles.parts import RankPart
from ddptop.agent.record.profiles.summary import Comparison
from ddptop.agent.wire.diagnoses.kept import Summary


def _summary(folder: Path) -> dict[str, Any]:
    done = traces.merge(folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def _own_ms(events: list[dict[str, Any]], phases: list[Any], folder: Path) -> dict[str, float]:
    traces.write(folder, {0: (rank(0, phases=phases), kineto(*events, base=0))})
    (part,) = parts.read(folder).ranks
    return {
        name: each.by_step.total() / 1e6
        for name, each in operators.of(trace.read(folder, part)).items()
        if each.by_step.total()
    }


def test_waits_are_no_work(tmp_path: Path) -> None:
    """Left out: the phase `wait`, collectives with what they call, a call that waits for the GPU, other steps' time."""
    events = [
        step(5, 10_000, 90_000),
        spent("aten::mm", 0, 5_000),
        spent("aten::add", 20_000, 10_000),
        spent("c10d::allreduce_", 30_000, 10_000),
        spent("aten::copy_", 31_000, 5_000),
        spent("aten::item", 40_000, 10_000),
        spent("cudaStreamSynchronize", 41_000, 8_000, cat="cuda_runtime"),
        # The second half is in the phase `wait`.
        spent("aten::mul", 50_000, 10_000),
        # On other threads and on the GPU there is nothing between operators.
        spent("aten::relu", 60_000, 4_000, tid=78),
        spent("sgemm", 56_000, 9_000, cat="kernel") | {"pid": 0, "tid": 7},
        spent("ncclDevKernel_AllReduce", 70_000, 9_000, cat="kernel") | {"pid": 0, "tid": 7},
        spent("a function", 10_000, 50_000, cat="python_function"),
    ]
    phases = [[5, [[0, 45_000_000, "forward"], [45_000_000, 50_000_000, "wait"], [50_000_000, 60_000_000, "data"]]]]
    assert _own_ms(events, phases, tmp_path) == pytest.approx(
        {
            "aten::add": 10,
            "aten::item": 2,
            "aten::mul": 5,
            "aten::relu": 4,
            "sgemm": 9,
            "Python outside of operators, in forward": 10,
            "Python outside of operators, in data loading": 10,
            "Python outside of operators": 30,
        }
    )


@given(
    spans=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=30),
    cuts=st.lists(st.integers(0, 40), max_size=8),
)
def test_own_times_fill_the_steps(spans: list[tuple[int, int]], cuts: list[int]) -> None:
    """On the training thread own times and waits add up to the steps, whatever overlaps or lies in a gap.

    Times are small numbers, so that many begin and end together.
    """
    edges = sorted(cuts)
    phases = [(a, b, "wait" if i % 2 else "data") for i, (a, b) in enumerate(itertools.pairwise(edges))]
    part = RankPart(0, "node1", "rank-0.json.gz", phases=[(5, phases), (6, [])])
    events = [step(5, 0, 0.04), step(6, 0.05, 0.01)]
    events += [spent(f"aten::{i}", begin / 1000, long / 1000) for i, (begin, long) in enumerate(spans)]
    document = msgspec.json.decode(json.dumps(kineto(*events, base=0)), type=trace._Document)
    found = operators.of(trace.Trace(part, document))
    waits = sum(max(0, min(b, 40) - a) for a, b, name in phases if name == "wait")
    assert sum(each.by_step.total() for each in found.values()) == 50 - waits
    assert sum(each.calls for each in found.values()) == sum(
        1
        for begin, _ in spans
        if (0 <= begin < 40 or 50 <= begin < 60)
        and not any(a <= begin < min(b, 40) for a, b, name in phases if name == "wait")
    )


def _ranks(times: dict[int, float], **more: Any) -> dict[int, Any]:
    """Return ranks whose step of 100 ms has an `aten::mm` of so many milliseconds, and waits for the rest of it."""
    return {
        number: (
            rank(number, phases=[[5, [[0, int(ms * 1e6), "forward"], [int(ms * 1e6), 100_000_000, "wait"]]]]),
            kineto(step(5, 0, 100_000), spent("aten::mm", 0, ms * 1000, **more), base=0),
        )
        for number, ms in times.items()
    }


def test_without_an_accused_rank_the_slowest_stands_against_the_middle(tmp_path: Path) -> None:
    """And the summary says so."""
    found = _summary(traces.write(tmp_path, _ranks({0: 20, 1: 22, 2: 60, 3: 21})))
    assert (found["culprit"], found["peer"], found["accused"]) == (2, 3, False)
    assert found["compared"] == (
        "no rank is accused: rank 2, which works longest (60 ms a step), against rank 3 in the middle (21 ms)"
    )
    assert found["sentences"] == ["aten::mm takes 60 ms a step on rank 2 and 21 ms on rank 3: 1 call against 1"]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (30, "no rank is accused: rank 1, which works longest (30 ms a step), against rank 0 (20 ms)"),
        (20.01, "no rank is accused, and none works longer: rank 1 against rank 0, 20 ms a step each"),
    ],
)
def test_of_two_ranks_none_is_in_the_middle_and_equal_ones_work_equally_long(
    tmp_path: Path, second: float, said: str
) -> None:
    """As far as the summary shows."""
    found = _summary(traces.write(tmp_path, _ranks({0: 20, 1: second})))
    assert found["compared"] == said


def test_whole_steps_are_not_compared_with_work(tmp_path: Path) -> None:
    """Where the phases of one rank were not recorded, none is said to work longest."""
    bare = rank(0, phases=[[5, []]]), kineto(step(5, 0, 100_000), base=0)
    found = _summary(traces.write(tmp_path, {**_ranks({1: 20}), 0: bare}))
    assert found["compared"] == "no rank is accused: rank 1 against rank 0"


def test_two_times_that_differ_do_not_look_alike(tmp_path: Path) -> None:
    """`takes 11 ms on rank 0 and 11 ms on rank 1` is no difference."""
    found = _summary(traces.write(tmp_path, _ranks({0: 11.4, 1: 10.6})))
    assert found["sentences"] == ["aten::mm takes 11.4 ms a step on rank 0 and 10.6 ms on rank 1: 1 call against 1"]


def test_ranks_that_work_alike_get_one_sentence(tmp_path: Path) -> None:
    found = _summary(traces.write(tmp_path, _ranks({0: 20, 1: 20.5}), culprit=1, peer=0))
    assert found["sentences"] == ["no operator takes longer on rank 1 than on rank 0 by more than 3 % of a step"]
    assert found["operators"][0]["difference_ms"] == 0.5


def _of_steps(number: int, times: list[float]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a rank whose steps have an `aten::mm` of so many milliseconds, and 20 ms of Python."""
    events: list[dict[str, Any]] = []
    at = 0.0
    for place, ms in enumerate(times):
        took = 1000 * ms
        events += [step(5 + place, at, took + 20_000), spent("aten::mm", at, took)]
        at += took + 20_000
    return rank(number), kineto(*events, base=0)


@pytest.mark.parametrize(
    ("mine", "others", "said"),
    [
        (
            [0.3, 22, 0.32],
            [0.3, 0.31, 0.3],
            "no operator takes longer on rank 1 than on rank 0 by more than 3 % of a step; "
            "in one step alone aten::mm took 22 ms there, 0.32 ms in others",
        ),
        (
            [22, 0.3],
            [0.3, 0.31],
            "no operator takes longer on rank 1 than on rank 0 by more than 3 % of a step; "
            "in one step alone aten::mm took 22 ms there, 0.3 ms in others",
        ),
        (
            [25, 24, 50],
            [5, 5, 40],
            "aten::mm takes 25 ms (24 to 50 ms) a step on rank 1 and 5 ms (5 to 40 ms) on rank 0",
        ),
        ([25, 24, 26], [5, 5, 5.1], "aten::mm takes 25 ms a step on rank 1 and 5 ms on rank 0"),
        ([25], [5], "aten::mm takes 25 ms a step on rank 1 and 5 ms on rank 0"),
    ],
)
def test_what_one_step_alone_shows_is_no_difference(
    tmp_path: Path, mine: list[float], others: list[float], said: str
) -> None:
    """It is said as what it is; and where steps of a rank differ, between which times."""
    traces.write(tmp_path, {0: _of_steps(0, others), 1: _of_steps(1, mine)}, culprit=1, peer=0)
    profile = parts.read(tmp_path)
    comparison = Comparison(profile)
    for part in profile.ranks:
        comparison.take(trace.read(tmp_path, part))
    found = msgspec.json.decode(comparison.encode(), type=Summary)
    assert found.sentences[0].partition(": ")[0] == said


def test_a_rank_alone_is_told_by_itself(tmp_path: Path) -> None:
    found = _summary(traces.write(tmp_path, _ranks({4: 20}), culprit=4))
    assert (found["culprit"], found["peer"]) == (4, None)
    assert found["sentences"] == ["aten::mm takes 20 ms a step on rank 4"]
    assert found["compared"] == "rank 4 alone, 20 ms a step"


def test_many_operators_are_cut_off(tmp_path: Path) -> None:
    """The hundred with the largest difference stay, and the others are counted."""
    events = [spent(f"aten::op{number}", number * 1000, number) for number in range(250)]
    documents = {0: kineto(step(5, 0, 300_000), base=0), 1: kineto(step(5, 0, 300_000), *events, base=0)}
    found = _summary(traces.write(tmp_path, documents, culprit=1, peer=0))
    assert [each["name"] for each in found["operators"][:2]] == ["aten::op249", "aten::op248"]
    assert (len(found["operators"]), found["left_out"]) == (100, 151)
