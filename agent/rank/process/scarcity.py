"""The descriptors and threads that the agent's sockets need, and the process of a rank may have no more.

ZeroMQ aborts the process where it gets none of them during its start, so they are tried before.
"""

from __future__ import annotations

import os
import threading
from typing import Final

_DESCRIPTORS: Final = 32
"""Descriptors that must be free."""
_THREADS: Final = 3
"""Threads that must be possible: two of ZeroMQ, and ours."""


def check_room() -> None:
    """Check that descriptors and threads are not about to run out.

    Raises:
        OSError: there are too few descriptors.
        RuntimeError: no more threads can be started.
    """
    opened: list[int] = []
    try:
        opened.extend(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(_DESCRIPTORS))
    finally:
        for descriptor in opened:
            os.close(descriptor)
    enough = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(_THREADS):
            thread = threading.Thread(target=enough.wait, daemon=True)
            thread.start()
            started.append(thread)
    finally:
        enough.set()
        for thread in started:
            thread.join()
