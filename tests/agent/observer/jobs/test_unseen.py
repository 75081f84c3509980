"""Ranks that never announce themselves, against real processes; the clock is moved by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
from support.harness import WAIT, until
from support.values.reports import RUN

from ddptop.agent.end import processes
from ddptop.agent.observer.jobs.unseen import AWAITED_S, Unseen
from ddptop.agent.run.identity import identify
from ddptop.agent.run.rundir import MARKER
from ddptop.agent.startup import pythonpath

PROGRAM = '''
"""Starts workers as Ray does: in sessions of their own, with the variables of a `runtime_env` over the others."""
import os, subprocess, sys
environment = {**os.environ, **dict(each.split("=", 1) for each in sys.argv[2:])}
workers = [subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=environment, start_new_session=True)
           for _ in range(2)]
print(*(worker.pid for worker in workers), flush=True)
for worker in workers:
    worker.wait()
'''
TRAIN = "while True: pass"


@contextmanager
def program(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    script = folder / "driver.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, **pythonpath.environment({}), MARKER: RUN.run_id}
    command = [sys.executable, str(script), *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]
        try:
            yield driver, workers
        finally:
            for worker in workers:
                worker.kill()


@pytest.mark.parametrize(
    ("work", "more", "told"),
    [(TRAIN, ("PYTHONPATH=/job",), True), (TRAIN, (), False), (WAIT, ("PYTHONPATH=/job",), False)],
    ids=["own PYTHONPATH", "environment inherited", "idle"],
)
def test_ranks_that_cannot_announce_themselves_are_told_once(
    tmp_path: Path, work: str, more: tuple[str, ...], told: bool
) -> None:
    """After a minute, where they compute; those that inherit the environment may still announce themselves."""
    with program(tmp_path, work, *more) as (driver, workers):
        run = msgspec.structs.replace(
            RUN, launched=True, command=("python", "driver.py"), torchrun=identify(driver.pid)
        )

        def look(now: float) -> str | None:
            return unseen.look([each.process for each in processes.find(run, {})], now)

        def used() -> float:
            return sum(sum(worker.cpu_times()[:2]) for worker in workers)

        unseen, now = Unseen(0.0), AWAITED_S
        assert not unseen.is_due(now - 1)
        assert unseen.is_due(now)
        assert look(now) is None
        before = used()
        if work == TRAIN:
            until(lambda: used() > before + 1, "the workers have computed for a second")
        line = look(now + 10)
        assert (line is not None and "PYTHONPATH of their own" in line) == told
        assert unseen.is_due(now + 600) == (not told)
