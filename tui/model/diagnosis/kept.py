"""The diagnoses that are kept with a run, and the module that makes lines of one.

A module is loaded once it is asked for, because few runs are diagnosed while somebody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ddptop.agent.record import numbered
from ddptop.tui.model.diagnosis.kinds import KINDS

if TYPE_CHECKING:
    from pathlib import Path

    from ddptop.agent.run.rundir import RunDir
    from ddptop.tui.model.diagnosis.report import ReportLine

K = TypeVar("K")


class Lines(Protocol[K]):
    """A module that reads the diagnoses of one kind, and makes lines of them."""

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


def kept_with(directory: RunDir, kind: str) -> list[Any]:
    """Return the diagnoses of a kind that are kept with a run, the newest first."""
    folders = {"profile": directory.profiles, "probe": directory.probes, "memory": directory.memory}
    return numbered.kept(folders[kind], lines_of(kind).read)


def newest(kind: str, directory: RunDir) -> list[ReportLine]:
    """Return the newest diagnosis of a kind as lines, or a line that says that there is none.

    Raises:
        RunDirError: the run cannot be read.
    """
    from ddptop.tui.model.diagnosis.report import ReportLine

    if found := kept_with(directory, kind):
        return lines_of(kind).lines(found[0], directory.read().world)
    return [ReportLine("", KINDS[kind].none)]
