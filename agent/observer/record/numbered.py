"""The numbered folders of the diagnoses that are kept with a run: `profiles/0001`, `memory/0001`, `probes/0001`."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path
from typing import Final

_NUMBER: Final = re.compile(r"\d{4,9}")


def folders(parent: Path) -> list[Path]:
    """Return the folders that there are, the newest first."""
    with contextlib.suppress(OSError):
        found = (each for each in parent.iterdir() if _NUMBER.fullmatch(each.name))
        return sorted(found, key=lambda each: int(each.name), reverse=True)
    return []


def new(parent: Path, file: str) -> Path:
    """Make the next folder, and remove those without `file`; raises `OSError`.

    An observer that made one was killed meanwhile, and nobody goes on with it.
    """
    parent.mkdir(mode=0o700, exist_ok=True)
    known = folders(parent)
    for each in known:
        if not (each / file).exists():
            shutil.rmtree(each, ignore_errors=True)
    folder = parent / f"{int(known[0].name) + 1 if known else 1:04}"
    folder.mkdir(mode=0o700)
    return folder
