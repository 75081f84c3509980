"""The newest steps of a rank: means and percentiles that go on are those of all values, worked out from nothing."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from support.values.steps import step

from ddptop.agent.observer.model.ranks import recent
from ddptop.agent.observer.model.ranks.recent import HELD, WINDOW_NS, Latencies, RecentSteps
from ddptop.agent.wire import DEVICE_PHASES, PHASES, Step


def steps(rng: random.Random, count: int, longest_ns: int) -> list[Step]:
    """Return steps of any length, of which some do not tell a phase, their samples or the device."""
    made = []
    for number in range(1, count + 1):
        spans: dict[str, Any] = {f"{phase}_ns": rng.randrange(longest_ns) for phase in PHASES}
        if rng.random() < 0.02:
            spans[f"{rng.choice(PHASES)}_ns"] = None
        device = tuple(rng.randrange(longest_ns) for _ in DEVICE_PHASES) if rng.random() < 0.3 else None
        made.append(
            msgspec.structs.replace(
                step(number, number),
                wall_ns=rng.randrange(1, longest_ns),
                samples=rng.choice((None, 32, 64)),
                counted=rng.choice((0, 0, 3)),
                counted_ns=rng.randrange(longest_ns),
                device_ns=device,
                **spans,
            )
        )
    return made


def window_of(taken: Sequence[Step]) -> list[Step]:
    """Return the longest row of newest steps that is no longer than the window, or the newest step."""
    rows = [taken[begin:] for begin in range(max(0, len(taken) - HELD), len(taken))]
    fits = [row for row in rows if sum(each.wall_ns + each.counted_ns for each in row) <= WINDOW_NS]
    return max([list(taken[-1:]), *map(list, fits)], key=len)


@pytest.mark.parametrize("longest_ns", [8_000_000, 300_000_000, 5_000_000_000])
def test_means_are_those_of_the_window(longest_ns: int) -> None:
    """Asked at any moment, the means are those of the steps of the last two seconds, each added up from nothing."""
    rng = random.Random(longest_ns)
    rank = RecentSteps()
    taken: list[Step] = []
    for each in steps(rng, 1500, longest_ns):
        taken.append(each)
        rank.append(each)
        if rng.random() > 0.1:
            continue
        window = window_of(taken)
        means = rank.means()
        wall = sum(each.wall_ns + each.counted_ns for each in window)
        number = len(window) + sum(each.counted for each in window)
        assert means.step_ms == pytest.approx(wall / number / 1e6)
        spans = {phase: [getattr(each, f"{phase}_ns") for each in window] for phase in PHASES}
        known = {phase: values for phase, values in spans.items() if None not in values}
        assert means.phases_ms is not None
        assert set(means.phases_ms) == set(known)
        own = sum(each.wall_ns for each in window)
        share = wall / own * len(window) / number if number > len(window) else 1
        for phase, values in known.items():
            assert means.phases_ms[phase] == pytest.approx(statistics.fmean(values) * share / 1e6)
        samples = [each.samples for each in window if each.samples is not None]
        if samples:
            assert means.others["samples_per_s"] == pytest.approx(sum(samples) / len(window) * number / wall * 1e9)
        else:
            assert means.others["samples_per_s"] is None
        on_device = [each.device_ns for each in window if each.device_ns is not None]
        if on_device:
            assert means.device_ms is not None
            first = statistics.fmean(spans[0] for spans in on_device) / 1e6
            assert means.device_ms[DEVICE_PHASES[0]] == pytest.approx(first)
        else:
            assert means.device_ms is None


def test_percentiles_are_those_of_the_newest_latencies() -> None:
    """Asked after any number of new ones, the percentiles are those of the newest that are held, sorted anew."""
    rng = random.Random(1)
    latencies = Latencies()
    taken: list[int] = []
    assert latencies.percentiles() is None
    for _ in range(400):
        new = [rng.randrange(10 ** rng.randrange(1, 10)) for _ in range(rng.choice((0, 1, 4, 40, 700)))]
        taken += new
        latencies.extend(new)
        newest = sorted(taken[-HELD:])
        if newest:
            found = latencies.percentiles()
            assert found == (newest[len(newest) // 2], newest[min(len(newest) - 1, len(newest) * 99 // 100)])


@dataclass
class Counted:
    """Counts which numbers of steps are read."""

    read: int = 0
    numbers: Any = field(default_factory=lambda: recent._NUMBERS)

    def __call__(self, each: Step) -> Any:
        self.read += 1
        return self.numbers(each)


def test_a_step_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the means are asked for, each step of the window is read once."""
    counted = Counted()
    monkeypatch.setattr(recent, "_NUMBERS", counted)
    rank = RecentSteps()
    for index, each in enumerate(steps(random.Random(2), 100, 10_000_000)):
        rank.append(each)
        if index % 5 == 0:
            rank.means()
            rank.means()
    rank.means()
    assert counted.read == 100
