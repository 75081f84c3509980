"""Stacks of other processes by py-spy, which is started for each; what it writes comes out of their memory, and is
checked like all that others send.

It reads a process without stopping it, except for frames of C and C++.
"""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ddptop.agent.outside import rights
from ddptop.agent.text import clean_line

AT_A_TIME: Final = 4
_LARGEST: Final = 16 << 20
"""Bytes of a dump at most."""
_ERRORS: Final = 16 << 10
_PIECE: Final = 1 << 16
MISSING: Final = "no stacks: py-spy is not installed; pip install 'ddptop[stacks]'"
LATE: Final = "no stacks from outside: py-spy took too long; ask for a single rank"


class Frame(msgspec.Struct, frozen=True):
    """A frame as py-spy prints it."""

    name: str = ""
    filename: str = ""
    line: int = 0


class Thread(msgspec.Struct, frozen=True):
    """A thread as py-spy prints it."""

    thread_name: str | None = None
    os_thread_id: int | None = None
    owns_gil: bool = False
    frames: list[Frame] = []


class Dump(NamedTuple):
    """The stacks of a process, or the reason why there are none."""

    threads: list[Thread]
    problem: str = ""


_decoder: Final = msgspec.json.Decoder(list[Thread])


def executable() -> str | None:
    """Return the path of py-spy: beside this Python, or else where the shell would find it."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) and beside.is_file() else shutil.which("py-spy")


def dumps(pids: Mapping[int, int], *, native: bool, until: float) -> dict[int, Dump]:
    """Return the stacks of processes, by the keys of `pids`; those that are not had in time say so.

    Args:
        pids: processes that are known to be those that are meant.
        native: with the frames of C and C++; each process stands still meanwhile, for about a second.
        until: the time, by `time.monotonic`, at which the last is given up.
    """
    program = executable()
    if program is None:
        return dict.fromkeys(pids, Dump([], MISSING))
    found: dict[int, Dump] = {}
    waiting = deque(pids.items())
    running: list[Spy] = []
    with selectors.DefaultSelector() as selector:
        while (waiting or running) and (left := until - time.monotonic()) > 0:
            while waiting and len(running) < AT_A_TIME:
                key, pid = waiting.popleft()
                command = (program, "dump", "--json", "--native" if native else "--nonblocking", "--pid", str(pid))
                try:
                    running.append(Spy(command, key, selector))
                except OSError as problem:
                    found[key] = Dump([], clean_line(f"no stacks from outside: py-spy cannot be started: {problem}"))
            for chosen, _ in selector.select(left) if running else ():
                chosen.data()
            for each in [each for each in running if each.is_over]:
                running.remove(each)
                found[each.key] = _dump_of(each)
        for each in running:
            each.give_up()
    return {key: found.get(key) or Dump([], LATE) for key in pids}


def _dump_of(spy: Spy) -> Dump:
    out, problem = spy.end()
    try:
        return Dump(_decoder.decode(out))
    except (msgspec.MsgspecError, RecursionError):
        return Dump([], problem)


class Spy:
    """One py-spy, and what it has written so far."""

    def __init__(self, command: Sequence[str], key: int, selector: selectors.BaseSelector) -> None:
        """Start it; what comes of it is read by the functions that `selector` has as data.

        Raises:
            OSError: it cannot be started.
        """
        self.key = key
        self._selector = selector
        self._out, self._errors = bytearray(), bytearray()
        self._open = 2
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Without the run's marker, by which it would be taken for a process of the run.
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            bufsize=0,
        )
        for pipe, content, most in (
            (self._process.stdout, self._out, _LARGEST),
            (self._process.stderr, self._errors, _ERRORS),
        ):
            assert pipe is not None
            selector.register(
                pipe,
                selectors.EVENT_READ,
                lambda pipe=pipe, content=content, most=most: self._read(pipe, content, most),
            )

    def _read(self, pipe: Any, content: bytearray, most: int) -> None:
        piece = os.read(pipe.fileno(), _PIECE)
        content += piece[: most + 1 - len(content)]
        if not piece:
            self._selector.unregister(pipe)
            pipe.close()
            self._open -= 1
        elif len(content) > most:
            # It ends at the next word that it writes, and its pipes with it.
            self._process.kill()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """True once it has said all."""
        return not self._open

    def end(self) -> tuple[bytes, str]:
        """Return what it wrote, and the reason that holds where this is nothing of use.

        The exit code is not asked for: the observer's main thread may have read it.
        """
        self._process.wait()
        if len(self._out) > _LARGEST:
            return b"", "no stacks from outside: they are too large"
        return bytes(self._out), _reason(self._errors.decode("utf-8", "replace"))

    def give_up(self) -> None:
        """End it."""
        self._process.kill()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None and not pipe.closed:
                self._selector.unregister(pipe)
                pipe.close()
        self._process.wait()


def _reason(errors: str) -> str:
    """Return why py-spy has no stacks and what would help, in one line."""
    if "ermission" in errors or "not permitted" in errors:
        forbids = rights.by_scope() or (
            "the system forbids it; in a container it takes the capability SYS_PTRACE (docker run --cap-add SYS_PTRACE)"
        )
        return f"no stacks from outside: {forbids}"
    # The causes are numbered lines, the innermost last; of the backtrace below them nothing helps.
    lines = errors.partition("Stack backtrace")[0].split("\n")
    told = [line.strip().lstrip("0123456789: ") for line in lines if line.strip() and "Caused by" not in line]
    return clean_line(f"no stacks from outside: py-spy: {told[-1] if told else 'it said nothing'}")
