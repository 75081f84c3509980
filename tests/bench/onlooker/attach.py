"""How soon the whole of a long run is on the screen, while it goes on and after its end.

    python tests/bench/onlooker/attach.py [--world 64] [--steps 36000 360000] [--times 5] [--quick]

The ranks are those of `load.py`, with so many steps each behind them, as the observer has recorded them.  The time is
that from the command to numbers in every panel in sight and a plot of the steps that it begins with, the last tenth to
quarter of the run.  The control is the same without a past: what is left is the start of the program and its first
screen.  The past is written into the recording before the observer starts, which takes minutes for the longer run; the
first look, while the observer may still be reading it, is told beside the table.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import load
from onlooker.terminal import Terminal

PATIENCE_S: Final = 120.0
READ_S: Final = 1800.0
"""How long an observer may take to read a recording that another one has left."""
STEP_MS: Final = 100.0
NUMBER: Final = re.compile(r"(?<![\d,./])\d{1,3}(?:,\d{3})+(?![\d,])")
"""A number of at least a thousand."""
PANELS: Final = 20
"""Panels that a terminal of this size shows of 64 ranks, at least."""


def has_numbers(text: str, world: int) -> bool:
    """Say whether all panels in sight have numbers."""
    lines = "\n".join(line for line in text.splitlines() if "all-reduce" in line or "│ step" in line)
    return text.count("all-reduce p50") >= min(world, PANELS) and "–" not in lines


def has_past(text: str, steps: int) -> bool:
    """Say whether the axis of the plot has ticks over the recent steps of the run, and nothing is missing any more."""
    if "over the last" not in text:
        return False
    for line in text.splitlines():
        ticks = [int(number.replace(",", "")) for number in NUMBER.findall(line)]
        # The panels tell the newest step, all of them about the same.
        if len(ticks) >= 3 and ticks == sorted(set(ticks)) and 0.7 * steps <= ticks[0] < 0.95 * ticks[-1]:
            return "loading history" not in text
    return False


def times(name: str, shown: Callable[[str], bool], count: int, patience_s: float = PATIENCE_S) -> list[float]:
    """Attach so often, and return how long each time took."""
    took = []
    for _ in range(count):
        terminal = Terminal(name)
        try:
            seen = terminal.wait(shown, patience_s)
        finally:
            terminal.leave()
        if seen is None:
            raise SystemExit(f"{name}: not on the screen within {patience_s:.0f} s")
        took.append(seen - terminal.begun)
    return took


def row(case: str, took: list[float], control: float) -> None:
    """Print a line of the table."""
    took = sorted(took)
    print(
        f"| {case} | {statistics.median(took):.2f} s ({took[0]:.2f} to {took[-1]:.2f}, {len(took)} times) "
        f"| {statistics.median(took) / control:.2f} |",
        flush=True,
    )


def main() -> None:
    """Measure each length, alive and ended, beside the control."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--world", type=int, default=64)
    options.add_argument("--steps", type=int, nargs="+", default=[36_000, 360_000])
    options.add_argument("--times", type=int, default=5)
    options.add_argument("--quick", action="store_true", help="four ranks, a short past, one time: does it work?")
    given = options.parse_args()
    load.allow_files()
    if given.quick:
        given.world, given.steps, given.times = 4, [5_000], 1
    world = given.world
    print(f"| attach, {world} ranks | until all of it is shown (target 0.7 s) | times the control |\n|---|---|---|")
    with load.started(world=world, step_ms=STEP_MS, keep=True) as run:
        # The first one may compile all of ddptop.
        times(run.name, lambda text: has_numbers(text, world), 1)
        took = times(run.name, lambda text: has_numbers(text, world), given.times)
        control = statistics.median(took)
        row("without a past: the control", took, control)
        again = times(run.name, lambda text: has_numbers(text, world), given.times)
        row("the control once more", again, control)
    for steps in given.steps:
        with load.started(world=world, step_ms=STEP_MS, keep=True, past=steps) as run:

            def whole(text: str, steps: int = steps) -> bool:
                return has_past(text, steps)

            (read,) = times(run.name, whole, 1, READ_S)
            took = times(run.name, lambda text: has_numbers(text, world) and whole(text), given.times)
            row(f"{steps:,} steps each, alive", took, control)
            run.finish()
            took = times(run.name, whole, given.times)
            row(f"{steps:,} steps each, ended", took, control)
            print(f"(the first look after the observer has started: {read:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
