"""The end of a log, as text."""

from __future__ import annotations

import os
from pathlib import Path

from ddptop.agent.run.files.private import open_plain


def end(path: Path, limit: int = 65536, begin: int = 0) -> str:
    """Return the last `limit` bytes of a log as text, not cleaned; nothing where there is no plain file.

    Of a log that was not cut short since it had `begin` bytes, only what was added is returned.
    """
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(begin if begin <= size else 0, size - limit))
            return file.read(limit).decode(errors="replace")
    except OSError:
        return ""
