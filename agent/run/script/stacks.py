"""Stacks of threads, made to fit into a message; alike where the rank reads its own and where others read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ddptop.agent.wire import MOST_FRAMES, MOST_THREADS, Thread

ROOM: Final = 128 << 10
"""Bytes of the threads of one inspection, about: its message stays well below 256 KiB."""
OWN_THREADS: Final = "ddptop-"
"""The beginning of the names of the agent's own threads, which are not shown."""
_LOCALS: Final = "<locals>."
USUAL: Final = r"(?:[\w.]*\.)?(?:StopIteration|StopAsyncIteration|Empty|Full|ImportError|ModuleNotFoundError)\b"
"""Exceptions that programs raise and catch as a matter of course: who handles one has not failed."""


def bounded(threads: Sequence[Thread], room: int = ROOM) -> tuple[tuple[Thread, ...], int]:
    """Return as many threads as one message has, and the number of those that were left out.

    The first one may take half of the room, the others share the rest; where a stack takes more, frames in its middle
    are left out.
    """
    kept: list[Thread] = []
    shown = threads[:MOST_THREADS]
    for index, thread in enumerate(shown):
        made = _fitting(thread, room // 2 if index == 0 else room // (len(shown) - index))
        room -= _size(made)
        kept.append(made)
    return tuple(kept), len(threads) - len(kept)


def _fitting(thread: Thread, room: int) -> Thread:
    count = min(MOST_FRAMES, len(thread.frames))
    made = _cut(thread, count)
    while count and _size(made) > room:
        count //= 2
        made = _cut(thread, count)
    return made


def _cut(thread: Thread, count: int) -> Thread:
    """Return a thread with so many of its frames, the innermost and the outermost ones."""
    frames = thread.frames
    left_out = len(frames) - count
    if not left_out:
        return thread
    kept = (*frames[: (count + 1) // 2], *frames[len(frames) - count // 2 :])
    return msgspec.structs.replace(thread, frames=kept, left_out=thread.left_out + left_out)


def _size(thread: Thread) -> int:
    return 200 + sum(16 + len((each.function + each.file + each.source).encode()) for each in thread.frames)


def function_name(qualified: str) -> str:
    """Return the name of a function with its class, without the functions around it."""
    return qualified.rpartition(_LOCALS)[2]
