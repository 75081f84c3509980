"""The arithmetic of the heatmap: what stays visible of a thousand ranks."""

from __future__ import annotations

import numpy as np
import pytest

from ddptop.tui.views.heatmap.scale import (
    UNKNOWN,
    Scale,
    arrange_bands,
    arrange_hosts,
    reduce_bands,
    runs,
    scale_of,
    shade,
)

SHADES = 16


def noise(ranks: int, columns: int, middle: float = 80.0) -> np.ndarray:
    return np.random.default_rng(1).normal(middle, middle / 50, (ranks, columns)).astype(np.float32)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 20, 21, 40, 41, 64, 1000, 1024, 4096])
@pytest.mark.parametrize(("lines", "halves"), [(1, True), (10, True), (20, True), (45, True), (1, False), (10, False)])
def test_every_rank_has_one_band_and_all_bands_fit(ranks: int, lines: int, halves: bool) -> None:
    """No rank is left out or twice there, and no more lines are used than there are."""
    bands = arrange_bands(ranks, lines, halves=halves)
    assert bands.lines <= lines
    assert bands.rows * bands.group >= ranks > (bands.rows - 1) * bands.group
    shown = [band for line in range(bands.lines) for band in bands.of_line(line) if band is not None]
    assert sorted(set(shown)) == list(range(bands.rows))
    if not halves:
        assert all(upper == lower for upper, lower in map(bands.of_line, range(bands.lines)))


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2, 2), (8,) * 12, (8, 3, 5, 1), (8,) * 128, (1,) * 21, (64, 1)])
@pytest.mark.parametrize(("lines", "halves"), [(1, True), (10, True), (20, True), (45, True), (3, False), (20, False)])
def test_hosts_stay_together_and_all_ranks_are_there(sizes: tuple[int, ...], lines: int, halves: bool) -> None:
    """Each place is in one band, no more lines are used than there are, and each host begins a band.

    Where hosts have lines of their own no line has ranks of two.
    """
    bands = arrange_hosts(sizes, lines, halves=halves)
    assert bands.lines <= lines
    owner = [host for host, size in enumerate(sizes) for _ in range(size)]
    seen: list[int] = []
    for band in range(bands.rows):
        seen += range(bands.first(band), bands.until(band))
        assert all(bands.band_of(place) == band for place in range(bands.first(band), bands.until(band)))
    assert seen == list(range(sum(sizes)))
    hosts_of = [{owner[place] for place in range(bands.first(band), bands.until(band))} for band in range(bands.rows)]
    assert all(len(hosts) <= bands.shared for hosts in hosts_of)
    shown = [[band for band in bands.of_line(line) if band is not None] for line in range(bands.lines)]
    assert sorted({band for line in shown for band in line}) == list(range(bands.rows))
    if len(sizes) <= lines:
        assert bands.shared == 1
        assert sorted(bands.names.values()) == list(range(len(sizes)))
        assert all(len(set().union(*(hosts_of[band] for band in line))) <= 1 for line in shown)
        assert all(min(hosts_of[shown[line][0]]) == host for line, host in bands.names.items())


def test_between_hosts_stands_a_line_where_no_rank_is_lost_for_it() -> None:
    """Three hosts of two ranks in ten lines: each rank has a line, and there are two lines between."""
    bands = arrange_hosts((2, 2, 2), 10)
    assert [bands.of_line(line) for line in range(bands.lines)] == [
        (0, 0), (1, 1), (None, None), (2, 2), (3, 3), (None, None), (4, 4), (5, 5),
    ]  # fmt: skip
    assert (None, None) not in arrange_hosts((4, 4), 8).halves


def test_the_highest_of_each_band_of_hosts_of_many_sizes() -> None:
    """Compared with Python's own max, where bands have different numbers of ranks."""
    values = noise(17, 5)
    bands = arrange_hosts((8, 3, 5, 1), 5)
    reduced = reduce_bands(values, bands.group, bands.begins)
    assert reduced.shape == (bands.rows, 5)
    for band in range(bands.rows):
        own = values[bands.first(band) : bands.until(band)]
        assert list(reduced[band]) == [max(column) for column in own.T]


def test_a_slow_rank_of_a_thousand_is_a_bright_streak() -> None:
    """With twenty ranks in a row, its row is at the top of the scale throughout and no other row ever is."""
    values = noise(1024, 120)
    values[517] += 30
    bands = arrange_bands(1024, 25)
    rows = shade(reduce_bands(values, bands.group), scale_of(values), SHADES)
    assert (rows[517 // bands.group] == SHADES).all()
    assert (np.delete(rows, 517 // bands.group, axis=0) < SHADES).all()


def test_the_highest_of_a_row_is_shown_and_what_is_not_known_does_not_hide_it() -> None:
    """Compared with Python's own max; a row of which nothing is known stays unknown."""
    values = noise(10, 5)
    values[3] = np.nan
    values[8:] = np.nan
    reduced = reduce_bands(values, 4)
    assert reduced.shape == (3, 5)
    for column in range(5):
        assert reduced[0, column] == max(values[rank, column] for rank in (0, 1, 2))
        assert np.isnan(reduced[2, column])


def test_one_hiccup_does_not_wash_out_the_rest() -> None:
    """A moment of ten times the usual leaves the scale where it was."""
    values = noise(64, 25)
    before = scale_of(values)
    values[:, 6] *= 10
    assert scale_of(values) == before


def test_noise_looks_calm() -> None:
    """Two per cent of noise take a few neighbouring shades of the scale, not all of them."""
    seen = set(shade(noise(64, 120), scale_of(noise(64, 120)), SHADES).ravel().tolist())
    assert max(seen) - min(seen) <= SHADES // 2


def test_a_scale_stays_while_it_fits() -> None:
    """Small changes keep it, so that colors do not shimmer; a new level of values moves it."""
    first = scale_of(noise(64, 120))
    assert first is not None
    assert scale_of(noise(64, 120, 80.5), first) is first
    moved = scale_of(noise(64, 120, 160.0), first)
    assert moved is not None
    assert moved.low > first.high * 0.9
    assert scale_of(np.full((2, 2), np.nan, np.float32)) is None


@pytest.mark.parametrize("value", [0.0, 1e-6, 5.0, 3e9, 3e38])
def test_equal_values_have_a_scale_too(value: float) -> None:
    """Also all zero, tiny and huge ones."""
    scale = scale_of(np.full((3, 3), value, np.float32))
    assert scale is not None
    assert scale.low <= value <= scale.high
    assert scale.low < scale.high


def test_the_largest_values_of_both_signs_have_a_scale() -> None:
    """A loss may be anything: the difference of two of them need not be a float of its own width."""
    values = np.array([[3.4e38, -3.4e38, 3.4e38, -3.4e38, 0.0]], np.float32)
    scale = scale_of(values)
    assert scale is not None
    assert scale.low <= -3.4e38 < 3.4e38 <= scale.high
    (shades,) = shade(values, scale, SHADES).tolist()
    assert shades[0] == shades[2] > shades[4] > shades[1] == shades[3] > UNKNOWN


def test_unknown_and_not_finite_have_shades_of_their_own() -> None:
    """Neither is a value of the scale."""
    values = np.array([[np.nan, np.inf, 0.0, 10.0, 1e9]], np.float32)
    assert shade(values, Scale(0.0, 10.0), SHADES).tolist() == [[UNKNOWN, SHADES + 1, 1, SHADES, SHADES]]


def test_runs_lose_no_cell() -> None:
    """Laid one after the other they are the line again."""
    rng = np.random.default_rng(2)
    upper, lower = (rng.integers(0, 3, 50).astype(np.uint8) for _ in range(2))
    laid = [(up, low) for length, up, low in runs(upper, lower) for _ in range(length)]
    assert laid == list(zip(upper.tolist(), lower.tolist(), strict=True))
