"""One rank of a launched run, without a launcher: the runner takes any script, torch or not."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.bases import base_of_its_own

from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Member, Run


@pytest.fixture(scope="package", autouse=True)
def runtime() -> Iterator[Path]:
    """A runtime directory for all these tests: what is started for a whole file is looked at in each of its tests."""
    with base_of_its_own() as base, pytest.MonkeyPatch.context() as patch:
        patch.setenv(rundir.BASE_VARIABLE, str(base))
        yield base


class Rank:
    """A rank that runs a script of the test's under the agent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = rundir.create(
            Run(
                run=f"test-{secrets.token_hex(3)}",
                run_id=secrets.token_hex(8),
                program="script.py",
                arguments=(),
                world=1,
                backend=None,
                device=None,
                created_at_ns=time.time_ns(),
                launched=True,
            )
        )

    def run(
        self, script: str, *, before: Callable[[], None] | None = None, plain: bool = False, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the script to its end; `before` in its process ahead of it, `plain` without the agent."""
        file = self.folder / "script.py"
        file.write_text(script)
        told = {"RANK": "0", "WORLD_SIZE": "1", rundir.DIRECTORY_VARIABLE: str(self.directory.path)}
        return subprocess.run(
            [sys.executable, *(() if plain else ("-m", "ddptop.agent")), str(file)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **told, rundir.MARKER: self.directory.read().run_id, **environment},
            preexec_fn=before,
        )

    @property
    def log(self) -> str:
        """What stands in the rank's log."""
        return self.directory.rank_log(0).read_text()

    @property
    def member(self) -> Member:
        """What the rank has written of itself."""
        return self.directory.members()[0]


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    """A rank in a run of its own."""
    return Rank(tmp_path)


@pytest.fixture
def small_disk() -> Iterator[Callable[[int, Path], None]]:
    """Mount a file system of so many KiB and 64 files on a folder; needs root, as the machines of the tests give it."""
    mounted: list[Path] = []

    def mount(kib: int, folder: Path) -> None:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={kib}k,nr_inodes=64,mode=700", "tmpfs", str(folder)],
            capture_output=True,
            check=False,
        )
        if done.returncode:
            pytest.skip("a file system of a test's own needs the right to mount one")
        mounted.append(folder)

    yield mount
    for folder in reversed(mounted):
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small_runtime(small_disk: Callable[[int, Path], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime directory on a disk of 2 MiB."""
    base = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
    try:
        small_disk(2048, base)
        monkeypatch.setenv(rundir.BASE_VARIABLE, str(base))
        yield base
    finally:
        # What is mounted there goes with its own fixture, after this one.
        for entry in base.iterdir():
            shutil.rmtree(entry, ignore_errors=True)
