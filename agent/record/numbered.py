"""The numbered folders of the diagnoses that are kept with a run: `profiles/0001`, `memory/0001`, `probes/0001`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from ddptop.agent.run.files import marks, removal

K = TypeVar("K")
_NUMBER: Final = re.compile(r"\d{4,9}")


def folders(parent: Path) -> list[Path]:
    """Return the folders that there are, the newest first."""
    with contextlib.suppress(OSError):
        found = (each for each in parent.iterdir() if _NUMBER.fullmatch(each.name))
        return sorted(found, key=lambda each: int(each.name), reverse=True)
    return []


def kept(parent: Path, read: Callable[[Path], K | None]) -> list[K]:
    """Return the diagnoses in these folders that can be `read`, the newest first."""
    return [found for folder in folders(parent) if (found := read(folder)) is not None]


def new(parent: Path, file: str) -> Path:
    """Make the next folder, and remove those of ours without `file`; raises `OSError`.

    An observer that made one was killed meanwhile, and nobody goes on with it.
    """
    known = folders(parent)
    for each in known:
        if not (each / file).exists():
            remove(each)
    folder = parent / f"{int(known[0].name) + 1 if known else 1:04}"
    marks.make(folder)
    return folder


def remove(folder: Path) -> bool:
    """Remove a folder that `new` has made, and no other; say whether it is gone."""
    return marks.is_ours(folder) and removal.empty(folder) is None
