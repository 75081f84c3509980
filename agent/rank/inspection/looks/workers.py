"""Looks at the data workers of this rank: processes that the loader forks, in which none of our threads lives.

They share a few pages of memory with the rank.  While these say that the rank looks, a worker begins a thread at its
next batch, which writes what it has seen into the worker's part of them.  Workers that are not forked share nothing,
and are not looked at.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import random
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ddptop.agent.rank.inspection.frames import current
from ddptop.agent.rank.inspection.looks.tally import Tally, bounded, stack_of
from ddptop.agent.run.script.sources import Sources
from ddptop.agent.wire import Frame, Looks

_EVERY_S: Final = 0.01
_LONGEST_S: Final = 10.0
"""Seconds after which a worker ceases to look, whatever the pages say."""
_WORKERS: Final = 16
"""Workers that have a part of the pages each; further ones share those of others."""
_PART: Final = 64 << 10
"""Bytes of a part."""
_HEAD: Final = struct.Struct("=QI")
"""At the beginning of a part: the looks that it is of, and the bytes that follow; 0: they are not written yet."""
_NOW: Final = struct.Struct("=Q")
"""At the beginning of the pages: the looks that go on, 0 where there are none."""
_PARTS: Final = tuple(range(_NOW.size, _NOW.size + _WORKERS * _PART, _PART))
"""Where the parts begin."""


class Workers:
    """The pages, as the rank and its workers see them."""

    def __init__(self, sources: Callable[[], Sources]) -> None:
        """Look at nothing yet; `sources` returns the files of this process, once the script is known."""
        self._sources = sources
        self._owner = os.getpid()
        self._pages = mmap.mmap(-1, _NOW.size + _WORKERS * _PART)
        self._number = 0
        self._thread: threading.Thread | None = None
        """In a worker: the thread that looks."""
        self._of = 0
        """In a worker: the looks that it takes, or took last."""
        self._fetching = 0
        """In a worker: identifier of the thread that makes a batch, 0 where none does."""
        self._batches = 0

    def begin(self) -> None:
        """Have the workers look from their next batch on."""
        self._number += 1
        _NOW.pack_into(self._pages, 0, self._number)

    def end(self) -> None:
        """Have the workers write what they have seen."""
        _NOW.pack_into(self._pages, 0, 0)

    def take(self) -> Looks | None:
        """Return what the workers have written, together; None where there is nothing."""
        found = []
        for at in _PARTS:
            of, size = _HEAD.unpack_from(self._pages, at)
            begin = at + _HEAD.size
            # Two loaders have workers of the same number: both may write at this moment.
            with contextlib.suppress(msgspec.MsgspecError):
                if of == self._number and size:
                    found.append(msgspec.msgpack.decode(self._pages[begin : begin + size], type=Looks))
        return _together(found) if found else None

    @property
    def is_writing(self) -> bool:
        """True while a worker that looks has not written yet."""
        return any(_HEAD.unpack_from(self._pages, at) == (self._number, 0) for at in _PARTS)

    def around(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        """Return torch's function that makes a batch, looked at where it runs in a worker of this rank."""

        @functools.wraps(fetch)
        def fetched(*args: Any, **kwargs: Any) -> Any:
            (of,) = _NOW.unpack_from(self._pages)
            if not of or os.getpid() == self._owner:
                return fetch(*args, **kwargs)
            self._look(of)
            self._fetching = threading.get_ident()
            try:
                return fetch(*args, **kwargs)
            finally:
                self._fetching = 0
                self._batches += 1

        return fetched

    def _look(self, of: int) -> None:
        if of == self._of or (self._thread is not None and self._thread.is_alive()):
            return
        self._of, self._batches = of, 0
        self._thread = threading.Thread(target=self._watch, args=(of,), name="ddptop-looks", daemon=True)
        # Where no more threads can be started.
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    def _watch(self, of: int) -> None:
        # A worker has nobody to tell an error to, and the training must not see it.
        with contextlib.suppress(Exception):
            self._watch_until_the_end(of)

    def _watch_until_the_end(self, of: int) -> None:
        part = _PARTS[_number() % len(_PARTS)]
        _HEAD.pack_into(self._pages, part, of, 0)
        tally = Tally(self._sources())
        # Not the generator of the module `random`: that is the script's.
        uneven = random.Random()
        last = time.perf_counter_ns()
        give_up = time.monotonic() + _LONGEST_S
        while _NOW.unpack_from(self._pages)[0] == of and time.monotonic() < give_up:
            time.sleep(_EVERY_S * uneven.uniform(0.5, 1.5))
            frames = current()
            now, stack = time.perf_counter_ns(), stack_of(frames.get(self._fetching))
            frames.clear()
            if stack:
                tally.add("worker", stack, now - last)
            last = now
        payload = _fitting(tally.looks(self._batches))
        begin = part + _HEAD.size
        self._pages[begin : begin + len(payload)] = payload
        _HEAD.pack_into(self._pages, part, of, len(payload))


def _number() -> int:
    import torch

    info = torch.utils.data.get_worker_info()
    return 0 if info is None else int(info.id)


def _fitting(looks: Looks) -> bytes:
    """Return looks as they are written: those with the most time, as many as a part has room for."""
    while len(payload := msgspec.msgpack.encode(looks)) > _PART - _HEAD.size:
        times = _times([looks])
        most = sorted(times, key=lambda each: -times[each])[: len(times) // 2]
        looks = bounded(looks.steps, {each: times[each] for each in most})
    return payload


def _together(found: list[Looks]) -> Looks:
    """Return the looks of several workers as one: the sum of their times."""
    return bounded(sum(looks.steps for looks in found), _times(found))


def _times(found: list[Looks]) -> Counter[tuple[str, tuple[Frame, ...]]]:
    spent: Counter[tuple[str, tuple[Frame, ...]]] = Counter()
    for looks in found:
        for stack in looks.stacks:
            spent[stack.phase, tuple(looks.places[number] for number in stack.frames)] += stack.ns
    return spent
