"""How long `status --json` and `ps` take in a large group, from the command to the end of the answer.

    python tests/bench/onlooker/status.py [--world 1024] [--times 10] [--quick]

The ranks are those of `load.py`; one of them is slow by 22 %.  The verbs are taken in turn with `--version`, which is
the control: the start of the interpreter.  An answer counts only where it tells the step of every rank.  The verbs run
with bytecode, as an installed ddptop does, whatever the environment says; the first answer, which may write it, is not
counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import load

DDPTOP: Final = (sys.executable, "-m", "ddptop.tui.cli.main")
HEARD_S: Final = 300.0


def answer(*arguments: str) -> tuple[float, str]:
    """Return how long a verb takes, and what it says."""
    began = time.perf_counter()
    done = subprocess.run([*DDPTOP, *arguments], capture_output=True, text=True, check=False, env=load.with_bytecode())
    took = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"ddptop {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-500:]}")
    return took, done.stdout


def unknown(text: str) -> int:
    """Return of how many ranks an answer of `status --json` does not tell the step."""
    return sum(rank["step"] is None for rank in json.loads(text)["ranks"])


def main() -> None:
    """Measure and print one line for each verb."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--world", type=int, default=1024)
    options.add_argument("--times", type=int, default=10)
    options.add_argument("--quick", action="store_true", help="eight ranks, twice: does it work?")
    given = options.parse_args()
    load.allow_files()
    if given.quick:
        given.world, given.times = 8, 2
    with load.started(world=given.world, keep=True) as run:
        deadline = time.monotonic() + HEARD_S
        while unknown(answer("status", run.name, "--json")[1]):
            if time.monotonic() > deadline:
                raise SystemExit(f"not all ranks were heard within {HEARD_S:.0f} s")
        verbs = {
            "status --json": ("status", run.name, "--json"), "ps": ("ps",), "--version: the control": ("--version",),
        }  # fmt: skip
        for arguments in verbs.values():
            answer(*arguments)
        took: dict[str, list[float]] = {name: [] for name in verbs}
        missing, verdicts = 0, set()
        for _ in range(given.times):
            for name, arguments in verbs.items():
                seconds, text = answer(*arguments)
                took[name].append(seconds)
                if name == "status --json":
                    missing += unknown(text)
                    verdict = json.loads(text)["verdict"]
                    verdicts.add(None if verdict is None else verdict["rank"])
    control = statistics.median(took["--version: the control"])
    print(f"| verb, {given.world:,} ranks | command to answer | times the control | target |\n|---|---|---|---|")
    for name, seen in took.items():
        middle, spread = statistics.median(seen), f"{min(seen):.2f} to {max(seen):.2f}, {len(seen)} times"
        target = "0.5 s" if name == "status --json" else ""
        print(f"| {name} | {middle:.2f} s ({spread}) | {middle / control:.2f} | {target} |")
    blamed = ", ".join(sorted("nobody" if rank is None else f"rank {rank}" for rank in verdicts))
    print(f"steps not known: {missing}; blamed in the {given.times} answers: {blamed}")


if __name__ == "__main__":
    main()
