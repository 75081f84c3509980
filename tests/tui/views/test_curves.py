"""The arithmetic of plots: bands, smoothing, and the part of the run that is shown."""

from __future__ import annotations

import math
import random
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, lists
from support.screens.frames import frame
from support.values.histories import Kept

from ddptop.agent import wire
from ddptop.agent.record.history.columns import Columns
from ddptop.tui.views.plot import curves
from ddptop.tui.views.plot.contents import Look, contents_of, span_of
from ddptop.tui.views.plot.extent import FEWEST, SMOOTHINGS, Extent
from ddptop.tui.views.plot.plot import extent_words, notes


def test_the_band_holds_all_ranks() -> None:
    """Least and greatest of all, mean of those that are known; a rank without numbers changes nothing."""
    rng = np.random.default_rng(5)
    values = rng.normal(size=(9, 40))
    values[3] = np.nan
    values[:, 7] = np.nan
    low, mean, high = curves.band(Columns(np.arange(40.0), values, values, values - 1, values + 1, values))
    known = np.delete(np.delete(values, 3, axis=0), 7, axis=1)
    assert np.delete(mean, 7) == pytest.approx(known.mean(axis=0))
    assert np.delete(low, 7) == pytest.approx(known.min(axis=0) - 1)
    assert np.delete(high, 7) == pytest.approx(known.max(axis=0) + 1)
    assert np.isnan(mean[7])


def test_smoothing_is_unbiased_and_keeps_gaps() -> None:
    """A constant stays itself from the first column on; unknown and broken columns stay what they are."""
    values = np.array([2.0, 2.0, np.nan, 2.0, np.inf, 2.0])
    for smoothing in SMOOTHINGS:
        assert np.array_equal(np.isfinite(curves.smoothed(values, smoothing)), np.isfinite(values))
        assert curves.smoothed(values, smoothing)[np.isfinite(values)] == pytest.approx(2.0)
    noise = np.random.default_rng(1).normal(size=400)
    spread = [curves.smoothed(noise, smoothing)[100:].std() for smoothing in SMOOTHINGS]
    assert spread == sorted(spread, reverse=True)
    assert spread[2] < 0.4 * spread[0]


def test_a_window_zooms_scrolls_and_follows() -> None:
    """Zoomed in, it goes along with the run; scrolled back, it stands; at the end it follows again."""
    extent = Extent(whole=True).zoomed(0.5, 1, 1000)
    assert extent.steps(1, 1000) == (501, 1000)
    assert extent.steps(1, 1100) == (601, 1100)
    back = extent.scrolled(-0.5, 1, 1000)
    assert back.steps(1, 1000) == back.steps(1, 1100) == (251, 750)
    assert back.scrolled(-5, 1, 1000).steps(1, 1000) == (1, 500)
    assert back.scrolled(0.5, 1, 1000) == extent
    assert extent.zoomed(2, 1, 1000) == Extent(whole=True)
    assert Extent(whole=True).scrolled(-1, 1, 1000) == Extent(whole=True)
    assert back.zoomed(0.5, 1, 1000).steps(1, 1000) == (376, 625)
    assert back.zoomed(0.5, 1, 1000, at=251).steps(1, 1000)[0] == pytest.approx(251, abs=1)


def test_at_first_a_window_shows_the_recent_steps() -> None:
    """All of a short run, the last part of a long one; one key shows the whole run, and once more the recent steps."""
    for steps, shown in ((1, 1), (500, 500), (501, 500), (3999, 500), (5000, 1000), (9000, 2000), (10**7, 2 * 10**6)):
        first, last = Extent().steps(1, steps)
        assert (last, last - first + 1) == (steps, shown)
        assert Extent().other().steps(1, steps) == (1, steps)
        assert Extent().other().other() == Extent()
    assert Extent().scrolled(-0.5, 1, 5000).steps(1, 5000) == (3501, 4500)
    assert Extent().zoomed(0.5, 1, 5000).steps(1, 5000) == (4501, 5000)
    assert Extent(span=100, end=2000).other() == Extent(whole=True)


def test_after_5000_steps_the_first_500_are_out_of_sight() -> None:
    """The recent steps fill the height, whatever the loss began with; the whole run is drawn with all that it has."""
    history = Kept(1)
    rng = np.random.default_rng(3)
    losses = [8 * math.exp(-number / 100) + 0.5 - number / 50_000 + rng.normal() / 100 for number in range(1, 5001)]
    losses[4499] = 50.0
    for number, loss in enumerate(losses, 1):
        history.take(0, wire.Step(number, number, number * 10**8, 10**8, 0, 10**8, 0, 0, 0, 0, loss, 32))
    recent = contents_of(history, [0], 0, (1, 5000), Look(), 100)
    whole = contents_of(history, [0], 0, (1, 5000), Look(extent=Extent(whole=True)), 100)
    assert recent is not None
    assert whole is not None
    assert recent.shown == (4001, 5000)
    assert recent.limits[1] < 0.6
    assert recent.outside == (None, 50.0)
    mean = np.delete(recent.lines[-1].values, recent.column(4500))
    assert mean.max() - mean.min() > 0.2 * (recent.limits[1] - recent.limits[0])
    assert whole.shown == (1, 5000)
    assert whole.limits[1] == pytest.approx(max(losses), rel=1e-6)
    assert whole.outside == (None, None)


def test_the_title_of_a_short_run_names_the_key_to_its_outliers_and_back() -> None:
    """All steps are recent there, and the key changes the range alone."""
    history, run, keys = Kept(1), (1, 100), {"plot.whole": "a"}
    for number in range(1, 101):
        loss = 50.0 if number == 40 else 1.0 + number % 2
        history.take(0, wire.Step(number, number, number * 10**8, 10**8, 0, 10**8, 0, 0, 0, 0, loss, 32))
    titles = []
    for shown in (Extent(), Extent(whole=True), Extent(whole=True, log=True)):
        look = Look(extent=shown)
        drawn = contents_of(history, [0], 0, run, look, 100)
        assert drawn is not None
        titles.append(
            " · ".join((extent_words(drawn, look, run, keys), *notes(drawn, look, frame(history=None), run, keys)))
        )
    assert titles == [
        "steps · clipped, max 50 · a: whole range",
        "the whole run · a: clip outliers",
        "the whole run · log",
    ]


def test_the_range_leaves_outliers_out_and_nothing_else() -> None:
    """One hiccup does not flatten the rest, and its value is told; noise, a slow rank and a new level stay in range."""
    rng = np.random.default_rng(4)
    calm = 80 + rng.normal(size=(4, 200))
    assert curves.usual_limits(list(calm)) == (calm.min(), calm.max())
    hiccup = calm.copy()
    hiccup[2, 60] = 900
    low, high = curves.usual_limits(list(hiccup))
    assert low >= calm.min()
    assert high < 100
    slow = calm.copy()
    slow[1] += 300
    assert curves.usual_limits(list(slow)) == (slow.min(), slow.max())
    level = np.full((1, 400), 0.1)
    level[0, -4:] = 0.01
    low, high = curves.usual_limits(list(level))
    assert low <= 0.01 < 0.1 <= high
    assert curves.usual_limits([np.array([math.nan, math.inf])]) == (0.0, 1.0)
    assert curves.usual_limits([]) == (0.0, 1.0)


@given(lists(lists(floats(width=32), max_size=30), max_size=4))
@settings(deadline=None, max_examples=60)
def test_a_range_is_never_empty(lines: list[list[float]]) -> None:
    """Whatever the values: the range is finite and not empty, and lies within that of all values unless widened."""
    arrays = [np.array(line, dtype=float) for line in lines]
    (low, high), (least, greatest) = curves.usual_limits(arrays), curves.limits(arrays)
    assert math.isfinite(low)
    assert math.isfinite(high)
    assert low < high
    assert high - low <= (greatest - least) * (1 + 1e-9)


def test_a_window_never_leaves_the_run() -> None:
    """Whatever keys in whatever runs: a window is inside the run, not empty, and as narrow as allowed at the least."""
    rng = random.Random(9)
    for _ in range(200):
        extent, first, last = Extent(), 1, rng.choice([1, 2, 20, 1000, 10**7])
        for _ in range(30):
            at = rng.choice([None, rng.uniform(first, last)])
            zoomed = extent.zoomed(rng.choice([0.5, 2]), first, last, at)
            extent = rng.choice([zoomed, *(extent.scrolled(by, first, last) for by in (0.5, -0.5)), extent])
            last += rng.choice([0, 0, 3])
            low, high = extent.steps(first, last)
            assert first <= low <= high <= last
            assert high - low + 1 >= min(FEWEST, last - first + 1)


def filled(world: int, steps: int) -> Kept:
    """Return ranks whose loss is their number plus a falling curve."""
    history = Kept(world)
    for number in range(1, steps + 1):
        for rank in range(world):
            loss = math.nan if (rank, number) == (0, 50) else rank + 100 / number
            history.take(rank, wire.Step(number, number, number * 10**8, 10**8, 0, 10**8, 0, 0, 0, 0, loss, 32))
    return history


def test_the_contents_are_one_some_or_many_ranks() -> None:
    """One rank within its extremes, a line for each of a few, a band for many; what is not finite is marked."""
    history = filled(9, 60)
    run = span_of(history, range(9), None)
    assert run == (1, 60)
    one, few, many = (contents_of(history, ranks, 2, run, Look(), 30) for ranks in ([2], range(4), range(9)))
    assert one is not None
    assert few is not None
    assert many is not None
    assert [line.name for line in one.lines] == ["min", "max", "2"]
    assert [line.name for line in few.lines] == ["0", "1", "3", "2"]
    assert [line.name for line in many.lines] == ["min", "max", "mean", "2"]
    assert few.lines[-1].values[-1] == pytest.approx(2 + 100 / 59.5, rel=1e-3)
    assert many.lines[2].values[-1] == pytest.approx(4 + 100 / 59.5, rel=1e-3)
    assert list(few.broken) == [50]
    band = contents_of(history, range(4), 2, run, Look(extent=Extent(band=True)), 30)
    assert band is not None
    assert [line.name for line in band.lines] == ["min", "max", "mean", "2"]
    assert [line.values[-1] for line in band.lines] == pytest.approx(
        [each + 100 / 59.5 for each in (0, 3, 1.5, 2)], rel=2e-2
    )
    assert few.at[-1] == 6.0


def test_there_are_no_contents_without_a_curve() -> None:
    """No steps, a single one, and a number that nobody knows give no contents; a scale without room says so."""
    history = filled(2, 40)
    assert span_of(Kept(2), range(2), None) is None
    assert contents_of(history, range(2), 0, (40, 40), Look(), 30) is None
    assert contents_of(history, range(2), 0, (1, 40), Look("learning_rate"), 30) is None
    drawn = contents_of(history, range(2), 0, (1, 40), Look("data", Extent(log=True)), 30)
    assert drawn is not None
    assert drawn.hidden
    seen = contents_of(history, range(2), 0, (1, 20), Look(), 30)
    assert seen is not None
    assert seen.steps[-1] == 20


def test_what_moves_by_less_than_a_dot_looks_the_same() -> None:
    """One more step changes no dot of a long run seen whole; of a short one, or far from the others, it does."""
    whole = Look(extent=Extent(whole=True))

    def dots(steps: int, last: float = 0.0) -> tuple[bytes, ...]:
        history = filled(2, steps)
        if last:
            history.take(0, wire.Step(steps + 1, steps + 1, 10**18, 1, 1, 0, 0, 0, 0, 0, last))
        drawn = contents_of(history, range(2), 0, (1, steps + bool(last)), whole, 40)
        assert drawn is not None
        return drawn.dots(80, 60)

    assert dots(5000) == dots(5001)
    assert dots(5000, last=50.0) != dots(5001)
    assert dots(30) != dots(31)


def test_a_band_of_a_thousand_ranks_takes_no_work_for_each() -> None:
    """Whatever the number of ranks, a band is drawn by the same few calls: a thousand cost arithmetic alone."""

    def calls(world: int) -> int:
        history = Kept(world)
        for number in range(1, 40):
            for rank in range(world):
                history.take(rank, wire.Step(number, number, number * 10**8, 10**8, 0, 10**8, 0, 0, 0, 0, 1.0, 32))
        history.write()
        counted = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            drawn = contents_of(history, range(world), 0, (1, 39), Look(), 100)
        finally:
            sys.setprofile(None)
        assert drawn is not None
        return counted

    few, many = calls(64), calls(1024)
    print(f"{few} calls for 64 ranks, {many} for 1,024")
    assert many < 2 * few
