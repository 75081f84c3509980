"""Actions that either all ranks of a run or none must carry out: each is decided once, in a numbered file.

A controller that dies while it sends a command to one rank after the other would leave some
ranks held and others not, and a collective between them that never ends.  So a decision is a file in the
run directory, created whole and exclusively: the first process to write number N has decided, and every rank
reads the file, with or without a message.  This module does not know the contents of decisions.
"""

from __future__ import annotations

import contextlib
import os
import re
from itertools import islice
from pathlib import Path
from typing import Final

from ddptop.agent.run.files import private

_NUMBER: Final = re.compile("[1-9][0-9]{0,17}")
_MOST_ENTRIES: Final = 100_000
_RETAINED: Final = 256
"""Newest decisions that stay on disk, for ranks that read late."""


class Decisions:
    """The decisions of one run, in order; any process of its user may write the next one."""

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
        """Make decision `serial`; return False where another process has already made it.

        Raises:
            OSError: nothing can be written there.
        """
        if self.newest() >= serial:
            return False
        self._folder.mkdir(mode=0o700, exist_ok=True)
        staging = self._folder / f".{serial}.{os.urandom(4).hex()}"
        try:
            private.write(staging, content)
            # Unlike a rename, a link does not replace an existing file.
            os.link(staging, self._folder / str(serial))
        except FileExistsError:
            return False
        finally:
            staging.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (self._folder / str(serial - _RETAINED)).unlink(missing_ok=True)
        return True

    def read(self, serial: int) -> bytes | None:
        """Return the content of decision `serial`, None where there is none yet."""
        try:
            return private.read(self._folder / str(serial))
        except OSError:
            return None
