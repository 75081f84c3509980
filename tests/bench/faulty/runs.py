"""One run of a program: started in one of three ways, watched as a user would, ended by `ddptop kill`."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from support.harness import DDPTOP, carriers, ddptop, until

from ddptop.agent.run import rundir

PROGRAMS: Final = Path(__file__).with_name("programs")
INTERVAL_S: Final = 0.25
"""Seconds between two lines of `watch`."""
START_S: Final = 180.0
"""How long a group may take to come up: on a busy machine each rank imports torch for half a minute."""
ENDING_S: Final = 30.0


@dataclass
class Watched:
    """A run that is watched."""

    name: str
    run_id: str
    started: subprocess.Popen[bytes]
    lines: list[dict[str, Any]]
    """The objects of `watch --json` up to now."""
    _coming: queue.SimpleQueue[dict[str, Any] | None]

    over: bool = False
    """Whether `watch` has ended, and all its lines are read."""

    def next_line(self, seconds: float) -> dict[str, Any] | None:
        """Return the next object; None where the run is over, or none came in time."""
        try:
            line = self._coming.get(timeout=seconds)
        except queue.Empty:
            return None
        if line is None:
            self.over = True
            return None
        self.lines.append(line)
        return line

    def kill(self) -> None:
        """End the run, as a user does, and wait until it is over."""
        ddptop("kill", self.name, "--grace", "1")

    def report(self) -> dict[str, Any] | None:
        """Return what `report --json` says; None where it says nothing."""
        done = ddptop("report", self.name, "--json")
        with contextlib.suppress(json.JSONDecodeError):
            found = json.loads(done.stdout)
            return found if isinstance(found, dict) else None
        return None


def command(start: str, world: int, program: str, arguments: tuple[str, ...]) -> list[str]:
    """Return the command line that starts a program of `programs/`."""
    script = str(PROGRAMS / f"{program}.py")
    launch = [*DDPTOP, "launch", "--plain", "--name", "f", "--grace", "1", "--world", str(world)]
    match start:
        case "launch":
            return [*launch, script, "--", *arguments]
        case "spawn":
            return [*launch, "--start", "spawn", script, "--", *arguments, "--spawn", str(world)]
        case "hand" | "plain":
            run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
            return [*run, *(["-m", "ddptop.agent"] if start == "hand" else []), script, *arguments]
    raise ValueError(f"start {start!r}: give launch, spawn, hand or plain")


@contextlib.contextmanager
def watched(base: Path, started_by: list[str], *, plain: bool = False) -> Iterator[Watched]:
    """Start a run below a folder of its own and watch it; nothing of it is left behind the block.

    One that is `plain` is met by the pid of its launcher, as soon as it is seen to be a training.

    Raises:
        AssertionError: it does not come up, or something of it is left.
    """
    os.environ[rundir.BASE_VARIABLE] = str(base)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # A file, not a pipe: who writes to it must not be held by us.
    with (base.parent / f"{base.name}.out").open("wb") as output:
        started = subprocess.Popen(
            started_by, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        run_id, looking = "", None
        try:
            if plain:
                until(lambda: ddptop("status", str(started.pid)).returncode == 0, "a training group", START_S)
            found = until(lambda: next(base.glob("[!.]*/run.json"), None), "the run's record", START_S)
            assert isinstance(found, Path)
            name = found.parent.name
            run_id = rundir.find(name).read().run_id
            looking = subprocess.Popen(
                [*DDPTOP, "watch", name, "--json", "--interval", str(INTERVAL_S)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            coming: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
            threading.Thread(target=_read, args=(looking, coming), daemon=True).start()
            yield Watched(name, run_id, started, [], coming)
        finally:
            if run_id:
                ddptop("kill", name, "--grace", "1")
            if looking is not None:
                looking.kill()
                looking.wait()
            started.terminate()
            try:
                started.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()
            if run_id:
                _end_what_is_left(run_id)


def _read(looking: subprocess.Popen[str], coming: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    assert looking.stdout is not None
    for line in looking.stdout:
        coming.put(json.loads(line))
    coming.put(None)


def _end_what_is_left(run_id: str) -> None:
    """End the processes that bear the run's marker: after the kill of ddptop there should be none."""
    deadline = time.monotonic() + ENDING_S
    while left := carriers(run_id):
        if time.monotonic() > deadline:
            print(f"  left after the kill, and ended here: {left}", flush=True)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.2)
