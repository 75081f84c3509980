"""What all ranks of a run must do or none: decided once, in numbered files of the run directory.

A controller that dies while it sends a command to one rank after the other would leave some
held and some not, and a collective between them that never ends.  So a decision is a file,
made whole and exclusively: the first to write number N has decided, and every rank reads it,
told or not.  Knows nothing of what is decided.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from itertools import islice
from pathlib import Path
from typing import Final

from ddptop.agent.run.files import private

_NUMBER: Final = re.compile("[1-9][0-9]{0,17}")
_MOST_ENTRIES: Final = 100_000
_RETAINED: Final = 256
"""Decisions that stay readable for a rank that was slow to look."""


class Decisions:
    """The decisions of one run, in order; any process of its user may write the next."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "decisions"

    def newest(self) -> int:
        """Return the number of the last decision, 0 before the first."""
        try:
            with os.scandir(self._folder) as entries:
                names = [entry.name for entry in islice(entries, _MOST_ENTRIES) if _NUMBER.fullmatch(entry.name)]
        except OSError:
            return 0
        return max(map(int, names), default=0)

    def decide(self, serial: int, content: bytes) -> bool:
        """Make decision `serial`; False where somebody else has made it before.

        Raises:
            OSError: nothing can be written there.
        """
        if self.newest() >= serial:
            return False
        self._folder.mkdir(mode=0o700, exist_ok=True)
        staging = self._folder / f".{serial}.{secrets.token_hex(4)}"
        try:
            private.write(staging, content)
            # Unlike a rename, a link never takes the place of what is there.
            os.link(staging, self._folder / str(serial))
        except FileExistsError:
            return False
        finally:
            staging.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (self._folder / str(serial - _RETAINED)).unlink(missing_ok=True)
        return True

    def read(self, serial: int) -> bytes | None:
        """Return what was decided, None where nothing is yet."""
        try:
            return private.read(self._folder / str(serial))
        except OSError:
            return None
