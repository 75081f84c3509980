"""The probes that are kept with a run, live or ended: a folder for each, with one file."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ddptop.agent.observer.judge.probe import Probe
from ddptop.agent.run.files import private

PROBE: Final = "probe.json"
_NUMBER: Final = re.compile(r"\d{4,9}")
_LARGEST: Final = 64 << 20


class Kept(NamedTuple):
    """A probe that is there."""

    number: str
    file: Path
    probe: Probe


def keep(folder: Path, probe: Probe) -> Path:
    """Write a probe into a new folder, and return that."""
    folder.mkdir(mode=0o700, exist_ok=True)
    numbers = [int(each.name) for each in folder.iterdir() if each.name.isdigit()]
    own = folder / f"{max(numbers, default=0) + 1:04}"
    own.mkdir(mode=0o700)
    private.replace(own / PROBE, msgspec.json.encode(probe))
    return own


def probes(folder: Path) -> list[Kept]:
    """Return the probes of a run, the newest first; `folder` has a folder for each."""
    with contextlib.suppress(OSError):
        numbers = sorted((each.name for each in folder.iterdir() if _NUMBER.fullmatch(each.name)), reverse=True)
        return [found for number in numbers if (found := read(folder / number)) is not None]
    return []


def read(folder: Path) -> Kept | None:
    """Return the probe in a folder, None where it is not complete."""
    try:
        probe = msgspec.json.decode(private.read(folder / PROBE, _LARGEST), type=Probe)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return Kept(folder.name, folder / PROBE, probe)
