"""Is the line of code behind a slow rank right, and how soon is it there?

    python tests/bench/faulty/lines.py [--places hook,worker] [--models linear,conv,deep] [--worlds 2,4] [--healthy 60]

`programs/delays.py` is slow on rank 1 in a line of its own, which it notes by itself.  It trains under
`ddptop launch` and is watched by `ddptop watch --json`.  Seconds are from the first verdict that blames this rank for
being slow to the first with a line.  Where the machine has too few cores the rank may be blamed for having none, or not
at all: `no verdict`, which is not counted against the line.  `--healthy` trains so many seconds without a delay, with
each model: a line that is named there is a false one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faulty.runs import START_S, Watched, command, watched

PLACES: Final = ("loader", "worker", "forward", "hook", "operator", "optimizer", "logging")
MODELS: Final = ("linear", "conv", "deep")
WORLDS: Final = (2, 4)
VERDICT_S: Final = 60.0
"""Seconds within which the rank is to be blamed, once all have begun."""
LINE_S: Final = 30.0
"""Seconds for which its line is waited for."""
WITHIN_S: Final = 8.0
"""Seconds that are wanted."""
SLOW_RANK: Final = 1


class Found(NamedTuple):
    """What was said of one run."""

    line: str | None
    """The line that was named; empty: a verdict without one; None: there was no verdict on the rank."""
    seconds: float | None
    said: str


def once(place: str, model: str, world: int, folder: Path) -> tuple[str, Found]:
    """Make one run; return the line that is right, and what was said."""
    note = folder / "note"
    arguments = (place, "--model", model, "--note", str(note))
    base = folder / "base"
    base.mkdir(mode=0o700)
    with watched(base, command("launch", world, "delays", arguments)) as run:
        found = _watch(run, of_module=place == "operator")
        return (note.read_text() if note.exists() else ""), found


def _watch(run: Watched, *, of_module: bool) -> Found:
    """Return the first line; of a module the first module, for which ranks look once a line shows no more."""
    began, earlier = time.monotonic(), ""
    blamed: float | None = None
    deadline, said = began + START_S + VERDICT_S, ""
    while time.monotonic() < deadline and not run.over:
        frame = run.next_line(1.0)
        if frame is None:
            continue
        if blamed is None and (frame.get("step") or 0) > 0:
            deadline = min(deadline, time.monotonic() + VERDICT_S)
        for verdict in _slow(frame):
            said = verdict["text"]
            if blamed is None:
                blamed = time.monotonic()
                deadline = blamed + LINE_S
            earlier = verdict["line"] or ""
            is_named = earlier.startswith("backward of ") if of_module else earlier
            if is_named or "no line of its code" in said:
                return Found(verdict["line"] or "", time.monotonic() - blamed, said)
        said = said or ((frame.get("verdict") or {}).get("text") or "")
    return Found(None if blamed is None else earlier, None, said)


def _slow(frame: dict[str, Any]) -> list[dict[str, Any]]:
    verdicts = frame.get("verdicts") or []
    return [each for each in verdicts if (each["kind"], each["rank"]) == ("slow_rank", SLOW_RANK)]


def healthy(model: str, world: int, seconds: float, folder: Path) -> list[str]:
    """Train without a delay; return the different lines that were named."""
    base = folder / "base"
    base.mkdir(mode=0o700)
    lines: set[str] = set()
    with watched(base, command("launch", world, "delays", ("nowhere", "--model", model))) as run:
        deadline = time.monotonic() + START_S
        is_training = False
        while time.monotonic() < deadline and not run.over:
            frame = run.next_line(1.0) or {}
            if not is_training and (frame.get("step") or 0) > 0:
                is_training, deadline = True, time.monotonic() + seconds
            for verdict in frame.get("verdicts") or []:
                if verdict["line"]:
                    lines.add(verdict["text"])
                elif verdict["kind"] == "slow_rank":
                    print(f"  blamed without a delay: {verdict['text']}", flush=True)
    return sorted(lines)


def _list(text: str) -> list[str]:
    return text.split(",")


def main() -> None:
    """Print a row for each run, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--places", type=_list, default=PLACES)
    parser.add_argument("--models", type=_list, default=MODELS)
    parser.add_argument("--worlds", type=_list, default=WORLDS)
    parser.add_argument("--healthy", type=float, default=0.0, help="seconds of each healthy run instead")
    options = parser.parse_args()
    results: list[tuple[str, Found]] = []
    for world in map(int, options.worlds):
        for model in options.models:
            if options.healthy:
                with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as folder:
                    lines = healthy(model, world, options.healthy, Path(folder))
                print(f"healthy    {model:<7} {world:>5}  {lines or 'no line'}", flush=True)
                continue
            for place in options.places:
                with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp") as folder:
                    right, found = once(place, model, world, Path(folder))
                results.append((right, found))
                took = "" if found.seconds is None else f"{found.seconds:5.1f} s"
                head = f"{place:<10} {model:<7} {world:>5}  {_grade(right, found):<10} {took:>7}"
                print(f"{head}  {found.said}", flush=True)
    if results:
        grades = [_grade(*each) for each in results]
        times = [found.seconds for _, found in results if found.seconds is not None]
        print(", ".join(f"{grade} {grades.count(grade)}" for grade in ("right", "wrong", "none", "no verdict")))
        if times:
            late = sum(each > WITHIN_S for each in times)
            print(
                f"line after {statistics.median(times):.1f} s, {max(times):.1f} at most; {late} after {WITHIN_S:.0f} s"
            )


def _grade(right: str, found: Found) -> str:
    if found.line is None:
        return "no verdict"
    named = found.line.partition(", ")[0]
    return "right" if named == right else "wrong" if named else "none"


if __name__ == "__main__":
    main()
