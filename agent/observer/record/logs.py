"""Keeps the log files of a run within their share of its room, without touching what writes them.

Where together they take more, the middle of the largest is cut out (see `sparse`): how a rank began and what it
said last stay.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ddptop.agent.run.files import sparse

_LEAST_BYTES: Final = 32 << 10
"""What stays of a log in any case."""
_LOWER: Final = 0.75
"""They are cut down to this part of their share, so that it is not done again at once."""
_MOST_FILES: Final = 100_000
_IMPOSSIBLE: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS)
"""What is wrong with the file system, and so with every log."""


class Logs:
    """The log files of a run."""

    def __init__(self, folder: Path, report: Callable[[str, str], None]) -> None:
        self._folder = folder
        self._report = report
        self._refused = self._told = False
        self.bytes = 0
        """What they take on the disk, as last seen."""

    def limit_to(self, share: int) -> None:
        """Cut the largest logs where all together take more than `share` bytes."""
        sizes = self._sizes()
        self.bytes = sum(sizes.values())
        if self.bytes <= share or self._refused:
            return
        highest = max(_LEAST_BYTES, level(list(sizes.values()), int(share * _LOWER)))
        for path, size in sizes.items():
            if size > highest:
                try:
                    self.bytes -= sparse.cut(path, highest)
                except FileNotFoundError:
                    continue
                except OSError as problem:
                    if problem.errno in _IMPOSSIBLE:
                        self._say(share, problem)
                        return
                    self._say_of_one(path, problem)

    def _sizes(self) -> dict[Path, int]:
        found: dict[Path, int] = {}
        try:
            with os.scandir(self._folder) as entries:
                for entry, _ in zip(entries, range(_MOST_FILES), strict=False):
                    with contextlib.suppress(FileNotFoundError):
                        if entry.name.endswith(".log") and entry.is_file(follow_symlinks=False):
                            found[Path(entry.path)] = entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            # The folder is on its way out, or cannot be read; there is nothing to be done about its logs.
            return found
        return found

    def _say_of_one(self, path: Path, problem: OSError) -> None:
        if not self._told:
            self._told = True
            self._report(
                f"nothing can be cut out of {path} ({problem.strerror}): it grows on; the other logs become shorter",
                "warning",
            )

    def _say(self, share: int, problem: OSError) -> None:
        self._refused = True
        self._report(
            f"the logs take more than their {share / 2**20:,.1f} MiB, and nothing can be cut out of them "
            f"({problem.strerror}): they grow on",
            "warning",
        )


def level(sizes: Sequence[int], total: int) -> int:
    """Return the size down to which the larger ones of `sizes` are cut so that all together take `total`."""
    left = total
    ordered = sorted(sizes)
    for index, size in enumerate(ordered):
        even = left // (len(ordered) - index)
        if size > even:
            return max(0, even)
        left -= size
    return max(ordered, default=0)
