"""A healthy training, looked at for hours: which hangs were told in it?  All of them are false alarms."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from faulty.runs import START_S, Watched, command, watched
from support.harness import ddptop

LOAD: Final = 4
"""Processes that take the cores in every other round."""
HELD_S: Final = 15.0
"""Time for which the run is paused."""
_RESUME_S: Final = 120.0
"""How long a resume is asked for again and again."""
ENDING_S: Final = 600.0
"""How long after its minutes a training may take to end its round."""


@dataclass
class Health:
    """What was told of a healthy training."""

    seconds: float = 0.0
    phases: Counter[str] = field(default_factory=Counter)
    """How often each phase began."""
    alarms: list[str] = field(default_factory=list)
    """Hangs that were told, with the phase in which they were."""
    told: Counter[str] = field(default_factory=Counter)
    """Other verdicts, by kind."""
    state: str = ""
    """State of the run at the end."""


def look(minutes: float, world: int, start: str, technique: str, folder: Path) -> Health:
    """Run the training and return what was told of it."""
    note = folder / "note"
    arguments = ("healthy", "--note", str(note), "--minutes", str(minutes), "--technique", technique)
    base = folder / "r"
    base.mkdir(mode=0o700)
    found, seen, began = Health(), set(), time.time()
    deadline = began + START_S + 60 * minutes + ENDING_S
    with watched(base, command(start, world, "healthy", arguments)) as run, contextlib.ExitStack() as load:
        done = 0
        while time.time() < deadline and not run.over:
            line = run.next_line(1.0)
            phases = _phases(note)
            for at, number, name in phases[done:]:
                print(f"  {at - began:6.0f} s  round {number}: {name}", flush=True)
                found.phases[name] += 1
                if name == "evaluate alone":
                    # The machine is under load in the odd rounds.
                    load.close()
                    if number % 2:
                        load.enter_context(_load())
                if name == "be paused":
                    _pause(run)
            done = len(phases)
            for verdict in line["verdicts"] if line else ():
                key = verdict["kind"], verdict["rank"], verdict["since"]
                if key in seen:
                    continue
                seen.add(key)
                found.told[verdict["kind"]] += 1
                if verdict["kind"] == "hang":
                    phase = phases[-1][2] if phases else "start"
                    found.alarms.append(f"{time.time() - began:.0f} s, {phase}: {verdict['text']}")
                    print(f"  FALSE ALARM {found.alarms[-1]}", flush=True)
            if line is not None:
                found.state = line["state"]
    found.seconds = time.time() - began
    return found


def _phases(note: Path) -> list[tuple[float, int, str]]:
    try:
        text = note.read_text()
    except FileNotFoundError:
        return []
    # The last line may not be whole yet.
    return [tuple(json.loads(line)) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _pause(run: Watched) -> None:
    """Pause the run, make single steps, and let it go on."""
    done: list[subprocess.CompletedProcess[Any]] = [ddptop("pause", run.name)]
    time.sleep(HELD_S)
    done += [ddptop("step", run.name, "3")]
    time.sleep(HELD_S)
    # On a machine under load a rank may take longer to answer than a verb waits, and a run that stays paused is none.
    give_up = time.time() + _RESUME_S
    while True:
        done.append(ddptop("resume", run.name))
        if not done[-1].returncode or run.over or time.time() > give_up:
            break
    for each in done:
        if each.returncode:
            print(f"  {each.args[3]}: {each.stderr.strip()}", flush=True)


@contextlib.contextmanager
def _load() -> Iterator[None]:
    """Take the cores of the machine."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOAD)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
