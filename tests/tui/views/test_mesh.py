"""Ranks of a device mesh: their places are shown, and samples on which several work together count once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace
from support.screens.dashboards import lines, numbers, table_of, text_of, until
from support.screens.frames import EVIL, NOW, StillSource, frame, frame_at, rank_frame

from ddptop.agent import wire
from ddptop.agent.client.frame import Frame
from ddptop.agent.observer.model.store import Store
from ddptop.agent.run.rundir import Run
from ddptop.agent.wire.vocabulary.mesh import place_of
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.drawing.lines import width_of
from ddptop.tui.drawing.theme import DARK, Ink
from ddptop.tui.views.panels import Shape, draw_panel

INK = Ink(DARK)
GRID = [{"data": data, "tensor": tensor} for data in range(12) for tensor in range(2)]


def grid() -> Frame:
    """Return twelve replicas of two ranks each."""
    ranks = tuple(rank_frame(rank, coordinates=where) for rank, where in enumerate(GRID))
    return frame(world=len(GRID), ranks=ranks, placed=True)


@pytest.mark.parametrize(
    ("coordinates", "rates"),
    [
        ([{"data": 0, "tensor": 0}, {"data": 0, "tensor": 1}, {"data": 1, "tensor": 0}, {"data": 1, "tensor": 1}], 2),
        ([{"stage": rank} for rank in range(4)], 1),
        ([{"tensor": rank} for rank in range(4)], 1),
        ([{"dp_replicate": rank // 2, "dp_shard": rank % 2} for rank in range(4)], 4),
        ([{"worker": rank} for rank in range(4)], 4),
        ([None] * 4, 4),
    ],
)
def test_samples_and_tokens_of_one_replica_count_once(coordinates: list[Mapping[str, int] | None], rates: int) -> None:
    """The group's samples a second are those of its replicas, each of which draws 32 of 64 tokens in 10 ms."""
    store = Store(Run("grid-1", "id", "grid.py", (), 4, "gloo", "cpu", 10**9, True))
    for rank, where in enumerate(coordinates):
        told = None if where is None else dict(where)
        store.apply(wire.Beat(rank, 1, "running", "forward", 1, None, 1, coordinates=told), 2.0)
        step = wire.Step(1, 1, 10**9, 10**7, 0, 10**7, 0, 0, 0, 0, 1.0, 32, tokens=32 * 64)
        store.apply(wire.Steps(rank, (step,)), 2.0)
    found = frame_at(store, 2.0)
    assert found.samples_per_s == pytest.approx(rates * 3200)
    assert found.tokens_per_s == pytest.approx(rates * 3200 * 64)
    assert found.placed == (coordinates[0] is not None)


async def test_the_table_has_places_where_ranks_have_them() -> None:
    """A column that sorts by number and is filtered by axis; a run without coordinates has no such column."""
    app = DdptopApp(StillSource(grid()), clock=lambda: NOW)
    async with app.run_test(size=(120, 50)) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "place" in lines(app)[0], "the column")
        assert [line.split()[1] for line in lines(app)[1:4]] == ["dp0·tp0", "dp0·tp1", "dp1·tp0"]
        await pilot.press("greater_than_sign", "I")
        assert numbers(app)[:3] == [23, 22, 21]
        await pilot.press("slash", *"tp1 dp1")
        await until(pilot, lambda: set(numbers(app)) == {3, 21, 23}, "replicas 1, 10 and 11 of part 1")
    app = DdptopApp(StillSource(frame()), clock=lambda: NOW)
    async with app.run_test(size=(120, 50)) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "state" in lines(app)[0], "the table")
        assert "place" not in {column.key for column in table_of(app).columns}


def test_a_panel_is_titled_with_its_place_where_there_is_room() -> None:
    """The place stands beside the number, and gives way to the step."""
    rank = rank_frame(3, coordinates={"data": 1, "tensor": 0})
    for width, there in ((60, True), (38, True), (24, False)):
        title = text_of(draw_panel(rank, frame(), Shape(width, 7, chosen=False), INK)[0])
        assert ("dp1·tp0" in title) is there, title
        assert len(title) == width
    assert "1,284" in text_of(draw_panel(rank, frame(), Shape(38, 7, chosen=False), INK)[0])


def test_names_of_axes_are_text() -> None:
    """An axis of any name keeps its panel in its box."""
    rank = replace(rank_frame(0), coordinates={EVIL[:20]: 1, "x" * 20: 2})
    rows = draw_panel(rank, frame(), Shape(50, 8, chosen=False), INK)
    assert {width_of(row) for row in rows} == {50}
    assert place_of({"data": 3, "my_axis": 4}) == "dp3·my_axis4"
