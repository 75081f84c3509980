"""Bounds the log files of a run to their share of its bytes, without the help of the processes that write them.

Where together they take more, the middle of the largest is cut out (see `sparse`): the beginning and the end of a
rank's output stay.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ddptop.agent.control.events import Events
from ddptop.agent.run.files import marks, sparse

_LEAST_BYTES: Final = 32 << 10
"""Bytes of a log that stay in any case."""
_LOWER: Final = 0.75
"""The part of their share to which the logs are cut, so that they need not be cut again at once."""
_MOST_FILES: Final = 100_000
_IMPOSSIBLE: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EROFS)
"""Errors of the file system, which concern every log."""


class Logs:
    """The log files of a run."""

    def __init__(self, folder: Path, events: Events) -> None:
        self._folder = folder
        self._events = events
        self._refused = self._reported_one = False
        self.bytes = 0
        """Bytes of the logs on disk at the last check."""

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
                        self._report_all(share, problem)
                        return
                    self._report_one(path, problem)

    def _sizes(self) -> dict[Path, int]:
        found: dict[Path, int] = {}
        try:
            with os.scandir(marks.owned_folder(self._folder)) as entries:
                for entry, _ in zip(entries, range(_MOST_FILES), strict=False):
                    with contextlib.suppress(FileNotFoundError):
                        if entry.name.endswith(".log") and entry.is_file(follow_symlinks=False):
                            found[Path(entry.path)] = entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            # The folder is being removed, or cannot be read.
            return found
        return found

    def _report_one(self, path: Path, problem: OSError) -> None:
        if not self._reported_one:
            self._reported_one = True
            self._events.say(
                f"nothing can be cut out of {path} ({problem.strerror}): it grows on; the other logs become shorter",
                "warning",
            )

    def _report_all(self, share: int, problem: OSError) -> None:
        self._refused = True
        self._events.say(
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
