"""The script's calls of our public functions: its announcement, and the metrics of its steps.

A value that cannot be used is left out and counted as a fault of the rank.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, TypeVar

from ddptop.agent.rank.calls import given
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.records.stamps import Stamps
from ddptop.agent.wire.incoming import LONGEST_NAME, clean_name

MOST_METRICS: Final = 512
"""Names that a script may log; further ones are left out."""
_LONGEST_GIVEN: Final = 4096
"""Characters of such a name that are read."""
_MOST_COORDINATES: Final = 8
_LARGEST_SIZE: Final = 1 << 53
"""The bound on `wire.message.Size`."""

_Value = TypeVar("_Value")


class Script:
    """The announcement and the metrics of a script, so far."""

    def __init__(self, stamps: Stamps, faults: Faults) -> None:
        """Know nothing yet; metrics go to the present step of `stamps`."""
        self.total_steps: int | None = None
        """Optimizer steps of the whole run."""
        self.note: str | None = None
        """One line that every screen shows."""
        self.coordinates: dict[str, int] | None = None
        """The position of this rank on the axes that the script names."""
        self.samples: int | None = None
        self.tokens: int | None = None
        """Those of one step of this rank."""
        self._stamps = stamps
        self._faults = faults
        self._names: dict[str, str] = {}
        """Names that the script logs, each with the name that is sent."""

    def announce(self, total_steps: object, note: object, coordinates: object, samples: object, tokens: object) -> None:
        """Take in what `ddptop.agent.start` was given."""
        self.total_steps = self.accepted("start(total_steps)", given.count, total_steps)
        self.note = self.accepted("start(note)", functools.partial(given.line, limit=200), note)
        if samples is not None:
            self.samples = self.accepted("start(samples)", _read_size, samples)
        if tokens is not None:
            self.tokens = self.accepted("start(tokens)", _read_size, tokens)
        if coordinates is not None:
            self.coordinates = self.accepted("start(coordinates)", self._read_coordinates, coordinates)

    def accepted(self, what: str, read: Callable[[object], _Value], value: object) -> _Value | None:
        """Return `read(value)`; None where the value is None, or where `read` raises, which is counted as a fault."""
        if value is None:
            return None
        try:
            return read(value)
        except Exception as error:
            self._faults.note(what, error)
            return None

    def _read_coordinates(self, coordinates: object) -> dict[str, int] | None:
        """Return the valid entries of a mapping, up to the one at which its iteration raises."""
        found: dict[str, int] = {}
        items = iter(coordinates.items())  # type: ignore[attr-defined]  # raises for what is no mapping
        try:
            for index, (name, where) in enumerate(islice(items, _MOST_COORDINATES + 1)):
                if index == _MOST_COORDINATES:
                    raise ValueError(f"more than {_MOST_COORDINATES}; the rest is left out")
                spelled = self.accepted("start(coordinates)", functools.partial(given.line, limit=20), name)
                position = self.accepted("start(coordinates)", given.count, where)
                if spelled is not None and position is not None:
                    found[spelled] = position
        except Exception as error:
            self._faults.note("start(coordinates)", error)
        return found or None

    def log(self, metrics: Mapping[str, object]) -> None:
        """Take in values for the current step; an error of the mapping itself is raised."""
        for name, value in metrics.items():
            try:
                known = self._names.get(name) or self._name(name)
                self._stamps.metric(known, given.number(value))
            except Exception as error:
                self._faults.note(f"log({self._names.get(name, '')})", error)

    def _name(self, name: str) -> str:
        if len(self._names) >= MOST_METRICS:
            raise ValueError(f"more than {MOST_METRICS} names; the rest is left out")
        whole = given.line(name, _LONGEST_GIVEN)
        known = self._names[name] = clean_name(whole)
        if known != whole:
            self._faults.note(f"log({whole[:60]}…): longer than {LONGEST_NAME} characters; shown as {known}")
        return known


def _read_size(value: object) -> int:
    size = given.count(value)
    if size > _LARGEST_SIZE:
        raise ValueError("more than a step can have")
    return size
