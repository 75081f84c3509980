"""What processes and folders take, sampled over time, and the bounds on it; read from /proc alone.

    python tests/bench/endurance/samples.py PID [SECONDS]

A series is judged by its worst value and by its growth: the median of the last quarter of the
time against that of the second.  What a process takes while it comes up is in neither.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

LEAST: Final = 8
"""Samples that a growth is told from."""


class Bound(NamedTuple):
    """The largest value, and the largest growth, that are in order; None where any is."""

    worst: float | None = None
    growth: float | None = None


class Usage(NamedTuple):
    """What one process takes."""

    memory: float
    """Resident, MiB."""
    descriptors: int
    threads: int


def usage(pid: int) -> Usage | None:
    """Return what a process takes, None where there is none of that number."""
    entry = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError, IndexError, ValueError):
        memory = int((entry / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        if memory:  # a zombie has none
            return Usage(memory, len(os.listdir(entry / "fd")), len(os.listdir(entry / "task")))
    return None


def count_files(folders: Iterable[Path]) -> int:
    """Return how many files of any kind lie below these folders."""
    return sum(len(files) for folder in folders for _, _, files in os.walk(folder))


def size(folders: Iterable[Path]) -> float:
    """Return what the files below these folders hold, MiB."""
    total = 0
    for folder in folders:
        for path, _, files in os.walk(folder):
            for file in files:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(path, file)).st_size
    return total / 2**20


class Series:
    """One number over time."""

    def __init__(self, name: str, bound: Bound) -> None:
        self.name = name
        self.bound = bound
        self.at: list[float] = []
        self.values: list[float] = []

    def add(self, at: float, value: float) -> None:
        """Take in the value at a moment, in seconds."""
        self.at.append(at)
        self.values.append(value)

    @property
    def slope(self) -> float | None:
        """The rise an hour over the second half, by least squares; None where the samples are too few."""
        half = len(self.at) // 2
        if half < LEAST:
            return None
        return 3600 * statistics.linear_regression(self.at[half:], self.values[half:]).slope

    @property
    def growth(self) -> float | None:
        """The median of the last quarter less that of the second."""
        quarter = len(self.values) // 4
        if quarter < LEAST // 2:
            return None
        second, last = self.values[quarter : 2 * quarter], self.values[-quarter:]
        return statistics.median(last) - statistics.median(second)

    def broken(self) -> list[str]:
        """Say which bounds do not hold."""
        found = []
        worst, growth = self.bound
        if worst is not None and max(self.values) > worst:
            found.append(f"{self.name}: {max(self.values):.0f}, and at most {worst:.0f} are in order")
        if growth is not None and self.growth is not None and self.growth > growth:
            found.append(f"{self.name}: grew by {self.growth:.1f}, and at most {growth:.0f} are in order")
        return found

    def row(self) -> str:
        """Return its line in the table."""
        slope = "–" if self.slope is None else f"{self.slope:+.1f}"
        median = statistics.median(self.values)
        bounds = "/".join("–" if bound is None else f"{bound:.0f}" for bound in self.bound)
        return (
            f"{self.name:<44} {len(self.values):>5} {self.values[0]:>8.1f} {median:>8.1f} {self.values[-1]:>8.1f} "
            f"{max(self.values):>8.1f} {slope:>9} {bounds:>9}"
        )


HEAD: Final = f"{'':<44} {'times':>5} {'first':>8} {'median':>8} {'last':>8} {'worst':>8} {'an hour':>9} {'bounds':>9}"


class Sampler:
    """Takes samples on a thread of its own until it is closed."""

    def __init__(self, look: Callable[[Sampler], None], period_s: float) -> None:
        """Call `look`, which adds samples, so often."""
        self.series: dict[str, Series] = {}
        self.wrong: list[str] = []
        self._look = look
        self._period_s = period_s
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, name: str, value: float, bound: Bound) -> None:
        """Take in a value of now."""
        series = self.series.setdefault(name, Series(name, bound))
        series.add(time.monotonic() - self._began, value)

    def add_process(self, name: str, pid: int, bounds: tuple[Bound, Bound, Bound]) -> bool:
        """Take in memory, descriptors and threads of a process; False where it is gone."""
        return self.add_worst(name, [pid], bounds)

    def add_worst(self, name: str, pids: Iterable[int], bounds: tuple[Bound, Bound, Bound]) -> bool:
        """Take in the largest memory, descriptors and threads among processes; False where there are none."""
        found = [taken for pid in pids if (taken := usage(pid)) is not None]
        if not found:
            return False
        for number, (what, bound) in enumerate(zip(("MiB", "descriptors", "threads"), bounds, strict=True)):
            self.add(f"{name}, {what}", max(taken[number] for taken in found), bound)
        return True

    def newest(self, name: str) -> float:
        """Return the last value of a series, 0 where there is none."""
        series = self.series.get(name)
        return series.values[-1] if series is not None else 0.0

    def _run(self) -> None:
        while not self._over.wait(self._period_s):
            try:
                self._look(self)
            except Exception as error:  # a wall: a sample that fails must not end the sampling unseen
                self.wrong.append(f"a sample failed: {error!r}")
                return

    def close(self) -> None:
        """Take no more samples."""
        self._over.set()
        self._thread.join(timeout=30)

    def broken(self) -> list[str]:
        """Say which bounds do not hold."""
        return self.wrong + [line for series in self.series.values() for line in series.broken()]

    def table(self) -> str:
        """Return all series as lines."""
        return "\n".join([HEAD, *(series.row() for series in self.series.values())])


def main() -> None:
    """Sample one process."""
    pid, seconds = int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 60.0
    anything = (Bound(), Bound(), Bound())

    def add(sampler: Sampler) -> None:
        sampler.add_process(f"process {pid}", pid, anything)

    sampler = Sampler(add, 1.0)
    time.sleep(seconds)
    sampler.close()
    print(sampler.table())


if __name__ == "__main__":
    main()
