"""The diagnoses that are kept with a run, and the module that makes lines of one.

A module is loaded once it is asked for, because few runs are diagnosed while somebody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ddptop.agent.client.diagnosis.kinds import DIAGNOSES

if TYPE_CHECKING:
    from ddptop.tui.model.diagnosis.report import ReportLine

K = TypeVar("K", contravariant=True)


class Lines(Protocol[K]):
    """A module that makes lines of the diagnoses of one kind."""

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
    """Return the module of a kind of diagnosis, which has its name."""
    module: Any = import_module(f"ddptop.tui.model.diagnosis.{kind}")
    found: Lines[Any] = module
    return found


def newest(kind: str, found: Sequence[Any], world: int) -> list[ReportLine]:
    """Return the newest diagnosis of a kind as lines, or a line that says that there is none."""
    from ddptop.tui.model.diagnosis.report import ReportLine

    if found:
        return lines_of(kind).lines(found[0], world)
    return [ReportLine("", DIAGNOSES[kind].none)]
