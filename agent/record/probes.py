"""The probes that are kept with a run, live or ended: a folder for each, with one file."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ddptop.agent.record import numbered
from ddptop.agent.run.files import private
from ddptop.agent.wire.diagnoses.probed import Probe

PROBE: Final = "probe.json"
_LARGEST: Final = 64 << 20


class Kept(NamedTuple):
    """A probe that is there."""

    number: str
    file: Path
    probe: Probe


def keep(folder: Path, probe: Probe) -> Path:
    """Write a probe into a new folder, and return that."""
    own = numbered.new(folder, PROBE)
    private.replace(own / PROBE, msgspec.json.encode(probe))
    return own


def read(folder: Path) -> Kept | None:
    """Return the probe in a folder, None where it is not complete."""
    try:
        probe = msgspec.json.decode(private.read(folder / PROBE, _LARGEST), type=Probe)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return Kept(folder.name, folder / PROBE, probe)
