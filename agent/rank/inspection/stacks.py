"""The stacks of all threads of this process, as Python itself knows them.

The frames of other threads go on while they are read: what is taken of each is its code and its line.  Nothing of
`linecache` or `traceback` is used, which read files and may be a module of the script's own.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Final, NamedTuple

import msgspec

from ddptop.agent.rank.faults import describe
from ddptop.agent.rank.inspection import locks
from ddptop.agent.rank.inspection.frames import current, exceptions
from ddptop.agent.run.script.sources import Sources, read_lines
from ddptop.agent.run.script.stacks import OWN_THREADS, USUAL, bounded, function_name
from ddptop.agent.text import clean, clean_line
from ddptop.agent.wire import MOST_FRAMES, MOST_THREADS, Frame, Thread

_DEEPEST: Final = 200_000
"""Frames of a stack that are looked at; of a deeper one the outermost are not found."""
_LONGEST_ERROR: Final = 300
"""Characters of an exception that is shown while it is handled."""
_COLLECTIVE: Final = f"{os.sep}torch{os.sep}distributed{os.sep}"
_PATIENCE_S: Final = 0.1
"""Seconds that reading the files may take."""


class _Taken(NamedTuple):
    """The stack of a thread before anything was read."""

    frames: list[tuple[str, str, int]]
    """Function, file and line, the innermost first."""
    left_out: int


class Stacks:
    """Takes the stacks; for use from one thread."""

    def __init__(self, sources: Sources, began: float) -> None:
        """Prepare.

        Args:
            sources: the files of this process.
            began: seconds since the epoch; lines of files that were changed later are not shown.
        """
        self._sources = sources
        self._began = began
        self.read_bytes = 0
        """Read by threads that have ended, or written."""
        self._reader: threading.Thread | None = None

    def take(self, training: int | None = None) -> tuple[tuple[Thread, ...], int]:
        """Return the threads, the training one first, and the number of those that were left out.

        Args:
            training: identifier of the training thread; None: the main one.
        """
        frames = current()
        own = threading.get_ident()
        known = {thread.ident: thread for thread in threading.enumerate()}
        idents = [ident for ident in frames if ident != own and not _is_ours(known.get(ident))]
        first = training if training in idents else threading.main_thread().ident
        idents.sort(key=lambda ident: (ident != first, ident not in known))
        taken = {ident: _taken(frames[ident]) for ident in idents[:MOST_THREADS]}
        texts = self._texts(taken.values())
        threads = {
            ident: self._thread(ident, stack, known.get(ident), texts, trains=ident == first)
            for ident, stack in taken.items()
        }
        if len(threads) > 1 and any(_may_wait(thread) for thread in threads.values()):
            for ident, lock in self._locks({ident: frames[ident] for ident in threads}, threads).items():
                threads[ident] = msgspec.structs.replace(threads[ident], lock=clean_line(lock))
        # They hold what the functions hold.
        frames.clear()
        kept, left_out = bounded(tuple(threads.values()))
        return kept, left_out + len(idents) - len(threads)

    def exception(self, old: frozenset[int], training: int | None = None) -> tuple[str, str]:
        """Return the exception that the training handles, and the user's line that raised it; empty where it is none.

        Args:
            old: `id` of exceptions during whose handling steps were made: the training goes on in there.
            training: identifier of the training thread; None: the main one.
        """
        found = exceptions()
        frames = current()
        first = training or threading.main_thread().ident
        # In another thread the training is where a collective is.
        order = sorted(found, key=lambda ident: ident != first)
        trains = (ident for ident in order if ident == first or _is_in_collective(frames.get(ident)))
        try:
            for ident in trains:
                error, trace = found[ident]
                told = describe(error, _LONGEST_ERROR)
                if id(error) not in old and not re.match(USUAL, told):
                    return told, raised_at(trace, self._sources)
        finally:
            # They hold what the functions hold.
            found.clear()
            frames.clear()
        return "", ""

    def _thread(
        self,
        ident: int,
        stack: _Taken,
        thread: threading.Thread | None,
        texts: dict[tuple[str, int], str],
        *,
        trains: bool,
    ) -> Thread:
        native_id = thread.native_id if thread is not None else None
        main = ident == threading.main_thread().ident
        return Thread(
            name=_name(thread) or f"thread {ident:#x}",
            frames=tuple(self._frame(frame, texts) for frame in stack.frames),
            main=trains,
            # In a forked process Python may still return that of its parent's.
            native_id=os.getpid() if main and sys.platform == "linux" else native_id,
            left_out=stack.left_out,
        )

    def _frame(self, frame: tuple[str, str, int], texts: dict[tuple[str, int], str]) -> Frame:
        function, file, line = frame
        return Frame(
            function=clean(function_name(function), 100),
            file=self._sources.name(file),
            line=max(0, line),
            source=texts.get((file, line), ""),
            library=self._sources.is_library(file),
        )

    def _texts(self, stacks: Iterable[_Taken]) -> dict[tuple[str, int], str]:
        """Return the source of the lines of the user's code, by file and number."""
        wanted: dict[str, set[int]] = {}
        for stack in stacks:
            for _, file, line in stack.frames:
                if not file.startswith("<") and not self._sources.is_library(file):
                    wanted.setdefault(file, set()).add(line)
        found: dict[tuple[str, int], str] = {}

        def read() -> None:
            for file, lines in wanted.items():
                for number, text in read_lines(self._sources.path(file), lines, before=self._began).items():
                    found[file, number] = text
            self.read_bytes += bytes_of_this_thread() or 0

        if wanted:
            self._wait_for(read)
        return dict(found)

    def _locks(self, frames: dict[int, FrameType], threads: dict[int, Thread]) -> dict[int, str]:
        found: dict[int, str] = {}

        @functools.cache
        def read(file: str, first: int, last: int) -> locks.Lines:
            if file.startswith("<") or self._sources.is_library(file):
                return {}
            numbers = range(first, last + 1)
            return read_lines(self._sources.path(file), numbers, before=self._began, indented=True)

        def lines(frame: FrameType) -> locks.Lines:
            first = frame.f_code.co_firstlineno
            return read(frame.f_code.co_filename, first, frame.f_lineno or first)

        def look() -> None:
            names = {ident: thread.name for ident, thread in threads.items()}
            found.update(locks.awaited(frames, names, lines))

        self._wait_for(look)
        return dict(found)

    def _wait_for(self, read: Callable[[], None]) -> None:
        """Read in a thread of its own: a network file system that hangs must not take the agent's voice."""
        if self._reader is not None and self._reader.is_alive():
            return
        self._reader = threading.Thread(target=read, name=f"{OWN_THREADS}reader", daemon=True)
        try:
            self._reader.start()
        except RuntimeError:
            # No more threads can be started: the stacks come without source.
            self._reader = None
            return
        self._reader.join(_PATIENCE_S)


def bytes_of_this_thread() -> int | None:
    """Return what the calling thread has read and written so far; None where the system does not count it."""
    try:
        with open("/proc/thread-self/io", "rb") as file:
            fields = file.read().split()
        return int(fields[1]) + int(fields[3])
    except (OSError, ValueError, IndexError):
        return None


def raised_at(trace: TracebackType | None, sources: Sources) -> str:
    """Return the user's line that raised an exception, `train.py:31 main`; empty where it was none of the user's."""
    where = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not sources.is_library(file):
            where = f"{sources.name(file)}:{trace.tb_lineno} {function_name(_called(trace.tb_frame))}"
        trace = trace.tb_next
    return clean(where, 300)


def own_sources() -> Sources:
    """Return the files of this process: the program's folder is that of its script, or of its package."""
    main = sys.modules.get("__main__")
    home = ""
    package = getattr(main, "__package__", None)
    if isinstance(package, str) and package:
        # The outermost package that has a file; one without is a namespace, which others may share.
        parts = package.split(".")
        names = [".".join(parts[: count + 1]) for count in range(len(parts))]
        files = [getattr(sys.modules.get(name), "__file__", None) for name in names]
        home = next((os.path.dirname(file) for file in files if isinstance(file, str)), "")
    file = getattr(main, "__file__", None)
    if not home and isinstance(file, str):
        home = os.path.dirname(os.path.abspath(file))
    try:
        folder = os.getcwd()
    except OSError:
        folder = ""
    return Sources(home, folder)


def _name(thread: threading.Thread | None) -> str:
    try:
        return "" if thread is None else clean(str(thread.name), 100)
    except Exception:  # whatever the script's own class of threads raises
        return ""


def _may_wait(thread: Thread) -> bool:
    mine = next((frame for frame in thread.frames if not frame.library), None)
    return mine is not None and locks.takes(mine.source)


def _is_ours(thread: threading.Thread | None) -> bool:
    return _name(thread).startswith(OWN_THREADS)


def _taken(frame: FrameType | None) -> _Taken:
    half = MOST_FRAMES // 2
    first: list[FrameType] = []
    last: deque[FrameType] = deque(maxlen=MOST_FRAMES - half)
    count = 0
    while frame is not None and count < _DEEPEST:
        if count < half:
            first.append(frame)
        else:
            last.append(frame)
        count += 1
        frame = frame.f_back
    # Only a script that means harm has a path longer than any system's.
    kept = [(_called(each), each.f_code.co_filename[:4096], each.f_lineno or 0) for each in (*first, *last)]
    return _Taken(kept, count - len(kept))


def _called(frame: FrameType) -> str:
    code = frame.f_code
    # Python 3.10 does not know the class of a method.
    return str(getattr(code, "co_qualname", code.co_name))


def _is_in_collective(frame: FrameType | None) -> bool:
    while frame is not None:
        if _COLLECTIVE in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
