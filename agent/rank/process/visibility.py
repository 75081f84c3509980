"""The rank lets the observer of its run look into it, and what that starts: py-spy, which would need root otherwise.

Where Yama's `ptrace_scope` is 1, none but an ancestor may look into a process, or who was allowed by it:
https://docs.kernel.org/admin-guide/LSM/Yama.html.  The observer is no ancestor, and a successor is another process.
"""

from __future__ import annotations

import os
from typing import Final

from ddptop.agent.run.identity import is_alive
from ddptop.agent.run.rundir import RunDir, RunDirError

_SET_PTRACER: Final = 0x59616D61
"""PR_SET_PTRACER of linux/prctl.h: "Yama"."""


class Visibility:
    """The observer that may look into this process; no error leaves it."""

    def __init__(self, directory: RunDir) -> None:
        self._directory = directory
        self._written_at_ns = 0
        """When the record of the run was written last, as far as it is known."""

    def tick(self) -> None:
        """Allow it to the present observer, whenever the record of the run was written."""
        try:
            written_at_ns = os.stat(self._directory.path / "run.json").st_mtime_ns
            if written_at_ns == self._written_at_ns:
                return
            observer = self._directory.read().observer
        except (OSError, RunDirError):
            return
        self._written_at_ns = written_at_ns
        if observer is not None and is_alive(observer):
            _allow(observer.pid)


def _allow(pid: int) -> None:
    # Here, because few ranks import it otherwise.
    import ctypes

    # It fails where there is no Yama, which forbids nothing then.
    ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)
