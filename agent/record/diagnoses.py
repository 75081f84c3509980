"""The diagnoses that are kept with a run, live or ended, each in a numbered folder: `profiles/0001`, `memory/0001`."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from ddptop.agent.record.profiles.parts import SUMMARY, TRACE
from ddptop.agent.run.files import decoding, marks, private, removal
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.wire.diagnoses.kept import FORMS, Kept, Summary
from ddptop.agent.wire.incoming import cleaned

MOST_PROFILES: Final = 2 << 30
"""Bytes of the traces that are kept with a run."""


_FILES: Final = {"profile": (TRACE, SUMMARY)}
"""By kind, the file without which a folder is not complete, and that with what was found; of others, one is both."""
_LARGEST: Final = 64 << 20
"""Bytes of what was found at most."""
_NUMBER: Final = re.compile(r"\d{4,9}")


def _files(kind: str) -> tuple[str, str]:
    return _FILES.get(kind, (f"{kind}.json",) * 2)


def folders(parent: Path) -> list[Path]:
    """Return the folders of diagnoses, the newest first."""
    with contextlib.suppress(OSError):
        found = (each for each in parent.iterdir() if _NUMBER.fullmatch(each.name))
        return sorted(found, key=lambda each: int(each.name), reverse=True)
    return []


def kept(directory: RunDir, kind: str) -> list[Kept[Any]]:
    """Return the diagnoses of a kind that are complete, the newest first."""
    return [found for folder in folders(directory.diagnoses(kind)) if (found := read(kind, folder)) is not None]


def read(kind: str, folder: Path) -> Kept[Any] | None:
    """Return the diagnosis in a folder, None where it is not complete."""
    file, finding = _files(kind)
    try:
        size = (folder / file).stat().st_size
        found: Any = cleaned(decoding.of(FORMS[kind]).decode(private.read(folder / finding, _LARGEST)))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return Kept(folder.name, folder / file, size, found)


def new(directory: RunDir, kind: str) -> Path:
    """Make the next folder, and remove those of ours that are not complete; raises `OSError`.

    An observer that made one was killed meanwhile, and nobody goes on with it.
    """
    parent = directory.diagnoses(kind)
    known = folders(parent)
    for each in known:
        if not (each / _files(kind)[0]).exists():
            remove(each)
    folder = parent / f"{int(known[0].name) + 1 if known else 1:04}"
    marks.make(folder)
    return folder


def write(kind: str, folder: Path, found: object) -> None:
    """Write what was found into a folder that `new` has made; raises `OSError`."""
    private.replace(folder / _files(kind)[1], msgspec.json.encode(found))


def remove(folder: Path) -> bool:
    """Remove a folder that `new` has made, and no other; say whether it is gone."""
    return marks.is_ours(folder) and removal.empty(folder) is None


def bound_profiles(directory: RunDir) -> None:
    """Remove profiles until `MOST_PROFILES` are left: first those that nobody has asked for, the oldest first.

    The newest stays, however large it is.
    """
    found: list[Kept[Summary]] = kept(directory, "profile")
    total = sum(each.size for each in found)
    for each in sorted(found[1:], key=lambda each: (not each.found.unasked, int(each.number))):
        if total <= MOST_PROFILES:
            return
        if remove(each.file.parent):
            total -= each.size
