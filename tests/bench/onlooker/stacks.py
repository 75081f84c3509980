"""How soon the stacks of all ranks are shown: `python tests/bench/onlooker/stacks.py [--world 4 256] [--times 7]`.

Fake ranks (`load.py`) speak the wire protocol to the real observer; the dashboard is the real one, attached in a
pseudo-terminal of 200 x 50. The time is that from the key to the painted screen with the places of all ranks; for
`ddptop stacks`, that of the whole command.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import load
from onlooker.terminal import Terminal

SETTLE_S = 5.0
TARGETS = {4: "0.5 s", 256: "2 s"}


def cost(world: int, times: int) -> None:
    """Print how long the key and the verb take for a group."""
    # Nobody makes steps: the ranks stand, and so each has its place.
    with load.started(world=world, rate=0) as run:
        command = [sys.executable, "-m", "ddptop.tui.cli.main", "stacks", run.name]
        verbs = []
        for _ in range(times):
            began = time.monotonic()
            done = subprocess.run(command, capture_output=True, text=True, env=load.with_bytecode(), check=True)
            verbs.append(time.monotonic() - began)
            assert f"({world - (world > load.SLOW)})" in done.stdout, done.stdout
        terminal = Terminal(run.name)
        try:
            terminal.drain(SETTLE_S)
            keys = [_key(terminal, world) for _ in range(times)]
        finally:
            terminal.leave()
    print(f"| {world} ranks | key {told(keys)} | verb {told(verbs)} | {TARGETS.get(world, '')} |", flush=True)


def told(seconds: list[float]) -> str:
    """Return the median, and the most."""
    return f"{statistics.median(seconds):.2f} s (at most {max(seconds):.2f})"


def _key(terminal: Terminal, world: int) -> float:
    began = time.monotonic()
    terminal.press(b"s")
    shown = terminal.wait(lambda text: f"{world:,} ranks at " in text, 30)
    if shown is None:
        raise SystemExit(f"the stacks of {world} ranks were not shown within 30 s")
    terminal.press(b"\x1b")
    terminal.drain(1.0)
    return shown - began


def main() -> None:
    """Measure the groups asked for."""
    options = argparse.ArgumentParser(description="how soon the stacks of all ranks are on the screen")
    options.add_argument("--world", type=int, nargs="+", default=[4, 256])
    options.add_argument("--times", type=int, default=7)
    given = options.parse_args()
    load.allow_files()
    for world in given.world:
        cost(world, given.times)


if __name__ == "__main__":
    main()
