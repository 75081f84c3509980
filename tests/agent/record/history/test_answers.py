"""Answers about the history, against plain sums over the steps themselves."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.values.histories import Kept

from ddptop.agent import wire
from ddptop.agent.record.history.answers import MOST_CELLS
from ddptop.agent.record.history.columns import Table, table_of
from ddptop.agent.wire.steps.numbers import CUSTOM

BASE_S = 1_800_000_000


def step(number: int, loss: float | None = 1.0, *, at_s: float | None = None, **more: Any) -> wire.Step:
    """A step of 100 ms."""
    end_ns = round((BASE_S + number * 0.1 if at_s is None else at_s) * 1e9)
    return wire.Step(
        number, number, end_ns, 10**8, 10**7, 2 * 10**7, 3 * 10**7, 10**7, 2 * 10**7, 10**7, loss, 32, **more
    )


def asked(kept: Kept, query: wire.History) -> tuple[wire.Extent, list[wire.HistoryPart], wire.Reply]:
    """Return the answer to a question as it comes over the wire."""
    payloads = [wire.encode(each) for each in kept.answer(query)]
    assert all(len(payload) <= wire.MAX_MESSAGE_BYTES for payload in payloads)
    extent, *parts, reply = map(wire.read_history, payloads)
    assert isinstance(extent, wire.Extent)
    assert isinstance(reply, wire.Reply)
    return extent, [part for part in parts if isinstance(part, wire.HistoryPart)], reply


def by_column(parts: list[wire.HistoryPart]) -> dict[tuple[int, int], Table]:
    """Return a table of one cell for each rank and column that is known."""
    cells = {}
    for part in parts:
        table = table_of(part)
        for row, rank in enumerate(table.ranks.tolist()):
            for column in range(part.columns):
                if table.known[row, column] > 0:
                    cells[rank, part.begin + column] = Table(table.ranks, *(each[row, column] for each in table[1:]))
    return cells


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 900), st.integers(1, 90), st.integers(1, 64), st.integers(0, 900), st.integers(0, 900),
    st.integers(0, 10**6),
)  # fmt: skip
def test_a_column_says_of_its_steps_what_the_steps_say(
    count: int, most: int, width: int, first: int, length: int, seed: int
) -> None:
    """Least, greatest, mean and number of every column of every stretch, where it is as wide as what is held."""
    rng = random.Random(seed)
    kept = Kept(2)
    values: dict[tuple[int, int], float | None] = {}
    for number in range(1, count + 1):
        for rank in (0, 1):
            if rng.random() < 0.9:
                loss = rng.choice([None, rng.uniform(-3, 3), rng.uniform(-3, 3)])
                values[rank, number] = loss
                kept.rows.steps(rank, (step(number, loss),), 0)
    _, parts, reply = asked(kept, wire.History(1, "loss", None, first, first + length, "step", most, width))
    assert reply.done
    found = by_column(parts)
    assert len({part.width for part in parts}) <= 1
    if not parts:
        return
    stride = parts[0].width
    assert stride >= width
    assert parts[0].columns <= most + 1
    for (rank, column), cell in found.items():
        steps = range(column * stride + 1, (column + 1) * stride + 1)
        known = [loss for each in steps if (loss := values.get((rank, each))) is not None]
        # Old steps are held in buckets of so many; narrower columns are those of several.
        if stride >= 4:
            assert cell.known == len(known)
            assert (cell.low, cell.high) == pytest.approx((min(known), max(known)), rel=1e-6)
            assert cell.mean == pytest.approx(statistics.fmean(known), rel=1e-4, abs=1e-5)
            assert abs(cell.at - (BASE_S + max(each for each in steps if (rank, each) in values) * 0.1)) < 0.1
    if stride >= 4:
        edges = first, first + length
        inside = {(rank, (number - 1) // stride) for (rank, number), loss in values.items() if loss is not None}
        wanted = {key for key in inside if (edges[0] - 1) // stride <= key[1] <= (edges[1] - 1) // stride}
        assert wanted <= found.keys()


def test_ten_times_the_steps_take_as_many_bytes() -> None:
    """What a plot shows does not grow with the run."""
    sizes = []
    for count in (2_000, 20_000):
        kept = Kept(2)
        for number in range(1, count + 1):
            kept.rows.steps(0, (step(number, math.sin(number)),), 0)
        sizes.append(sum(len(wire.encode(each)) for each in kept.answer(wire.History(1, "loss", most=256))))
    assert sizes[1] <= 2 * sizes[0]
    assert sizes[1] <= 256 * 20 + 1000


def test_many_ranks_share_the_columns_of_an_answer() -> None:
    """However many ranks and columns are asked for, an answer has a bound, and each message its own."""
    world = 1024
    kept = Kept(world)
    for rank in range(world):
        for number in (1, 1000, 2000):
            kept.rows.summary(summary(rank, number))
    _, parts, _ = asked(kept, wire.History(1, "step", most=4096))
    assert sum(len(part.mean) // 4 for part in parts) <= 2 * MOST_CELLS
    assert {rank for part in parts for rank in table_of(part).ranks.tolist()} == set(range(world))


def summary(rank: int, number: int, generation: int = 0) -> wire.Summary:
    """A summary of ten steps of 100 ms."""
    steps = 10 * number
    return wire.Summary(
        rank, number, (BASE_S + number) * 10**9, steps, steps, 10, 10**8, 10**7, 2 * 10**7, 3 * 10**7, 10**7,
        2 * 10**7, 10**7, 0.5, generation=generation,
    )  # fmt: skip


def test_a_large_group_is_known_by_its_summaries() -> None:
    """Records of single ranks, which are asked for where one is suspected, do not count twice."""
    kept = Kept(wire.EACH_RECORD + 1)
    for number in range(1, 30):
        kept.rows.summary(summary(3, number))
        kept.rows.summary(summary(3, number))
        kept.rows.steps(3, [step(10 * number - 5)], 0)
    _, parts, _ = asked(kept, wire.History(1, "step", (3,), most=1000))
    found = by_column(parts)
    assert {column * parts[0].width + 1: float(cell.known) for (_, column), cell in found.items()} == {
        10 * number: 1.0 for number in range(1, 30)
    }


def test_a_restart_goes_on_and_repetitions_count_once() -> None:
    """Steps of a new generation follow the old one's on every rank; what comes again, or late, changes nothing."""
    kept = Kept(2)
    for _ in range(2):
        for rank, last in ((0, 30), (1, 28)):
            for number in range(1, last + 1):
                kept.rows.steps(rank, (step(number, 1.0),), 0)
    kept.rows.steps(1, (step(1, 2.0), step(2, 2.0)), 1)
    kept.rows.steps(0, (step(31, 3.0),), 0)
    extent, parts, _ = asked(kept, wire.History(1, "loss", (1,), most=1000))
    assert (extent.first, extent.last, extent.newest) == (1, 32, 32)
    found = {column + 1: cell.mean for (_, column), cell in by_column(parts).items()}
    assert found == {**dict.fromkeys(range(1, 29), 1.0), 31: 2.0, 32: 2.0}
    # A step that counted twice would move the mean of its second.
    again = Kept(1)
    for numbers in ((1, 2, 21, 22, 23), (21, 22)):
        again.rows.steps(0, [step(number) for number in numbers], 0)
    assert again.window("number", 0, BASE_S + 2, 1)[0, 0] == 22


def test_numbers_over_time_are_those_of_the_seconds() -> None:
    """At each width, of one rank or of all; what is asked for beyond what is held is not answered."""
    kept = Kept(3)
    for number in range(1, 400):
        kept.rows.steps(1, (step(number, float(number)),), 0)
    for width in (1, 4, 16):
        query = wire.History(1, "number", (1,), BASE_S, BASE_S + 39, "time", 4096, width)
        _, (part,), _ = asked(kept, query)
        assert part.width == width
        values = table_of(part).mean[0]
        for column, value in enumerate(values.tolist()):
            since = (part.begin + column) * width - BASE_S
            inside = [number for number in range(1, 400) if since <= number * 0.1 + 1e-7 < since + width]
            assert value == pytest.approx(statistics.fmean(inside)) if inside else math.isnan(value)
    _, parts, _ = asked(kept, wire.History(1, "number", None, 0, 1 << 53, "time"))
    assert parts == []
    _, (part,), _ = asked(kept, wire.History(1, "own", None, BASE_S, BASE_S + 40, "time", 20))
    assert part.width == 4
    assert table_of(part).ranks.tolist() == [1]


@pytest.mark.parametrize(
    "query",
    [
        wire.History(5, "nonsense"),
        wire.History(5, CUSTOM + "nonsense"),
        wire.History(5, "samples", by="time"),
        wire.History(5, "loss", by="phase"),
    ],
)
def test_a_number_that_there_is_not_is_refused(query: wire.History) -> None:
    """With its name, in a reply like any other."""
    kept = Kept(1)
    kept.rows.steps(0, (step(1),), 0)
    _, parts, reply = asked(kept, query)
    assert not reply.done
    assert reply.id == 5
    assert reply.text
    assert not parts


def test_names_of_the_script_are_told() -> None:
    """In the order in which they came, also to somebody who asks for no number."""
    kept = Kept(1)
    kept.rows.steps(0, (step(1, metrics={"b": 1.0}), step(2, metrics={"a": math.nan, "b": 2.0})), 0)
    extent, parts, reply = asked(kept, wire.History(1))
    assert extent == wire.Extent(1, 1, 2, 2, True, ("b", "a"))
    assert reply.done
    assert not parts
    _, (part,), _ = asked(kept, wire.History(2, CUSTOM + "a"))
    # A value that is not finite is known.
    assert table_of(part).mean.tolist()[0][-1] == math.inf


@settings(deadline=None, max_examples=50)
@given(st.binary(min_size=24, max_size=24), st.binary(min_size=8, max_size=8), st.floats(0, 1e18))
def test_whatever_four_bytes_say_can_be_drawn(cells: bytes, ranks: bytes, at_s: float) -> None:
    """No count below zero, no moment that no calendar has, one sign for "not finite"."""
    part = wire.HistoryPart(1, "loss", "step", 1, 0, 3, ranks, cells, cells, cells, cells, cells, at_s)
    read = wire.read_history(wire.encode(part))
    assert isinstance(read, wire.HistoryPart)
    table = table_of(read)
    assert ((table.known >= 0) & np.isfinite(table.known)).all()
    assert (np.isnan(table.at) | ((table.at >= 0) & (table.at < 4e9))).all()
    assert not (table.mean == -np.inf).any()


def test_a_question_of_any_numbers_is_answered() -> None:
    """Whatever stretch, width and ranks are asked for, there is one reply, and no message beyond the bound."""
    kept = Kept(5)
    for number in (1, 2, 3, 2**52):
        kept.rows.steps(0, (msgspec.structs.replace(step(1), seq=number, step=number),), 0)
    edges = (0, 1, 2, 63, 2**52, 2**53)
    rng = random.Random(1)
    for _ in range(200):
        query = wire.History(
            1, rng.choice(["loss", "number", ""]), rng.choice([None, (), (0,), (4, 9), (65_535,)]), rng.choice(edges),
            rng.choice(edges), rng.choice(["step", "time"]), rng.choice([1, 2, 4096]), rng.choice(edges),
        )  # fmt: skip
        asked(kept, wire.read_command(wire.encode(query)))  # type: ignore[arg-type]  # it is a `History`
