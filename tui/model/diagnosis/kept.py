"""The diagnoses that are kept with a run, and the module that makes lines of one.

A module is loaded once it is asked for, because few runs are diagnosed while somebody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ddptop.tui.model.diagnosis.kinds import KINDS

if TYPE_CHECKING:
    from pathlib import Path

    from ddptop.agent.run.rundir import RunDir
    from ddptop.tui.model.diagnosis.report import ReportLine

K = TypeVar("K")


class Lines(Protocol[K]):
    """A module that reads the diagnoses of one kind, and makes lines of them."""

    def kept_with(self, directory: RunDir, /) -> list[K]:
        """Return those of a run, the newest first."""
        ...

    def read(self, folder: Path, /) -> K | None:
        """Return the one in a folder, None where it is not complete."""
        ...

    def lines(self, kept: K, world: int, /) -> list[ReportLine]:
        """Return one as lines, the same on the dashboard and in plain output, of a run of so many ranks."""
        ...

    def listing(self, kept: Sequence[K], /) -> list[str]:
        """Return a line for each."""
        ...

    def as_json(self, kept: K, /) -> dict[str, Any]:
        """Return one as it is printed with `--json`."""
        ...


def lines_of(kind: str) -> Lines[Any]:
    """Return the module of a kind of `KINDS`."""
    if kind == "probe":
        from ddptop.tui.model.diagnosis import probe

        return probe
    if kind == "memory":
        from ddptop.tui.model.diagnosis import memory

        return memory
    assert kind == "profile"
    from ddptop.tui.model.diagnosis import profile

    return profile


def newest(kind: str, directory: RunDir) -> list[ReportLine]:
    """Return the newest diagnosis of a kind as lines, or a line that says that there is none.

    Raises:
        RunDirError: the run cannot be read.
    """
    from ddptop.tui.model.diagnosis.report import ReportLine

    module = lines_of(kind)
    if found := module.kept_with(directory):
        return module.lines(found[0], directory.read().world)
    return [ReportLine("", KINDS[kind].none)]
