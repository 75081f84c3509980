"""A launched run of the obedient script, which does what it is asked to and tells what it has done."""

from __future__ import annotations

from pathlib import Path

from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import RunDir
from support.harness import ddptop, until, write_script
from support.processes.scripts import OBEDIENT


class Job:
    """A run of the obedient script, and what the script itself wrote."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        self.folder = folder
        self.name = name
        path = write_script(folder, OBEDIENT, "obedient.py")
        words = ("launch", "--world", "2", "--name", name, "--detach", *options, str(path), "--", str(folder))
        done = ddptop(*words, cwd=folder)
        assert done.returncode == 0, done.stderr
        until(lambda: min(self.counts()) > 5, "the first steps")

    @property
    def directory(self) -> RunDir:
        return rundir.find(self.name)

    def counts(self) -> list[int]:
        """Return the steps that each script has begun."""
        files = (self.folder / f"count-{rank}" for rank in range(2))
        return [int(file.read_text()) if file.exists() else 0 for file in files]

    def goes_on(self) -> None:
        """Wait for a few steps more."""
        now = max(self.counts())
        until(lambda: min(self.counts()) > now + 3, "steps")
