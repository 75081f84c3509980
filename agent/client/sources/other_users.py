"""The runs of other users, for root: each user's are read by a child process that has become that user.

The owner of a run directory may have put anything into it, in a form that nobody has thought of.  So nothing
of it is opened with root's rights: a child gives them up first, is bounded in time, memory and descriptors,
and answers in text that is bounded, checked and cleaned here.  A child that fails costs one line.
"""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import resource
import selectors
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from ddptop.agent.client import look
from ddptop.agent.client.frame import Frame, whole
from ddptop.agent.client.runs import Run
from ddptop.agent.run import base, rundir
from ddptop.agent.text import clean_line
from ddptop.agent.wire.frames import LONGEST, RunFrame
from ddptop.agent.wire.incoming import cleaned

CHILD_S: Final = 20.0
"""How long a user's runs may take to be read."""
MEMORY_BYTES: Final = 2 << 30
"""Bytes that a child may add to those it begins with, most of them never touched: the stacks of ZeroMQ's threads."""
MOST_RUNS: Final = 64
"""Runs that are listed of each user, the newest."""
LARGEST_ANSWER: Final = 1 << 20
_AT_ONCE: Final = 8
"""Users whose runs are read at the same time."""
_LINKS: Final = 8
"""Runs that a child has open together."""
_DESCRIPTORS: Final = 4096
_LARGEST: Final = 2**53
_MOST_RESTARTS: Final = 1000
_NOBODY: Final = 65534
"""Group of a user that the system does not know."""


class _Seen(msgspec.Struct):
    """One run of another user."""

    frame: RunFrame
    size_bytes: int | None = None


class _Answer(msgspec.Struct):
    """The runs that a child has found, and its problem."""

    runs: list[_Seen] = []
    problem: str = ""


@dataclass(slots=True)
class _Child:
    """A child that reads the runs of one user."""

    uid: int
    pid: int
    pipe: int
    heard: bytearray
    problem: str = ""


def frames(who: str) -> tuple[list[Frame], list[str]]:
    """Return a frame without ranks of each run, newest first, and a line for each user whose runs could not be read.

    Args:
        who: as for `look.frames`.
    """

    def read(uid: int, folder: Path) -> list[Frame]:
        theirs = [Run(directory) for directory in rundir.runs_in(folder, uid)[:MOST_RUNS]]
        pieces = (theirs[first : first + _LINKS] for first in range(0, len(theirs), _LINKS))
        return [frame for piece in pieces for frame in look.frames(piece, who, onlooker=True)]

    found: list[Frame] = []
    problems: list[str] = []
    waiting = iter(sorted(rundir.bases_of_others().items()))
    while group := list(islice(waiting, _AT_ONCE)):
        for child in _gather(group, read):
            name = user_name(child.uid)
            frames_of, problem = _checked(child, name)
            found += frames_of
            if problem:
                problems.append(f"runs of user {name} could not be read: {problem}")
    return sorted(found, key=lambda frame: frame.started_at or 0.0, reverse=True), problems


def user_name(uid: int) -> str:
    """Return what the system calls a user, the number where it knows none."""
    try:
        return clean_line(pwd.getpwuid(uid).pw_name, 40)
    except KeyError:
        return str(uid)


def _gather(group: Iterable[tuple[int, Path]], read: Callable[[int, Path], list[Frame]]) -> list[_Child]:
    """Start a child for each user, and read all answers that come in time."""
    children: list[_Child] = []
    with selectors.DefaultSelector() as selector:
        for uid, folder in group:
            try:
                child = _start(uid, folder, read)
            except OSError as error:
                children.append(_Child(uid, -1, -1, bytearray(), f"no process for it ({error.strerror})"))
                continue
            children.append(child)
            selector.register(child.pipe, selectors.EVENT_READ, child)
        deadline = time.monotonic() + CHILD_S
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                child = key.data
                piece = os.read(child.pipe, 65536)
                child.heard += piece
                if not piece or len(child.heard) > LARGEST_ANSWER:
                    selector.unregister(child.pipe)
        for key in list(selector.get_map().values()):
            key.data.problem = f"it takes longer than {CHILD_S:.0f} s"
    for child in children:
        if child.pid > 0:
            _end(child)
    return children


def _start(uid: int, folder: Path, read: Callable[[int, Path], list[Frame]]) -> _Child:
    try:
        gid = pwd.getpwuid(uid).pw_gid
    except KeyError:
        gid = _NOBODY
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        with warnings.catch_warnings():
            # Forked and not started anew: the user may not be allowed to read the modules that root runs. `ps` does it
            # while there is no other thread, NumPy's included.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if pid == 0:
        code = 1
        try:
            _become(uid, gid, writing)
            _answer(lambda: read(uid, folder))
            code = 0
        finally:
            # Whatever happens, the child never goes on to do what the parent was about to do.
            os._exit(code)
    os.close(writing)
    return _Child(uid, pid, reading, bytearray())


def _become(uid: int, gid: int, writing: int) -> None:
    """Give up every right but the user's, and everything that root's process has open; the answer goes to 1."""
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(writing, 1)
    for standard in (0, 2):
        os.dup2(null, standard)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir("/")
    # Root's environment named the folder of the bases, and the child has none.
    base.known_temporary_folder = base.temporary_folder()
    os.environ.clear()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CPU, int(CHILD_S)),
        (resource.RLIMIT_NOFILE, _DESCRIPTORS),
        (resource.RLIMIT_AS, _memory() + MEMORY_BYTES),
    ):
        hard = resource.getrlimit(limit)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    with contextlib.suppress(PermissionError):
        os.setuid(0)
    if 0 in (os.getuid(), os.geteuid()):
        raise PermissionError("root's rights are still there")


def _memory() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return 1 << 30


def _answer(read: Callable[[], list[Frame]]) -> None:
    try:
        answer = _Answer([_seen(frame) for frame in read()])
    except BaseException as error:  # whatever it is: the parent reports it
        answer = _Answer(problem=f"{type(error).__name__}: {str(error)[:200]}")
    content = memoryview(msgspec.msgpack.encode(answer))
    while content:
        content = content[os.write(1, content) :]


def _seen(frame: Frame) -> _Seen:
    run = RunFrame(**{name: getattr(frame, name) for name in RunFrame.__struct_fields__})
    return _Seen(replace(run, events=(), on_hosts=(), restarts=run.restarts[-_MOST_RESTARTS:]), frame.size_bytes)


def _end(child: _Child) -> None:
    """Wait for the child to end, and kill it where it does not; the problem is noted in it."""
    os.close(child.pipe)
    if child.problem or len(child.heard) > LARGEST_ANSWER:
        child.problem = child.problem or f"more than {LARGEST_ANSWER >> 20} MiB to be told"
        with contextlib.suppress(OSError):
            os.kill(child.pid, signal.SIGKILL)
    deadline = time.monotonic() + 1.0
    while (ended := os.waitpid(child.pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.002)
    if ended[0] == 0:
        with contextlib.suppress(OSError):
            os.kill(child.pid, signal.SIGKILL)
        child.problem = child.problem or "its reader does not end"
    elif not child.problem and os.WIFSIGNALED(ended[1]):
        child.problem = f"its reader was ended by signal {os.WTERMSIG(ended[1])}"
    elif not child.problem and not child.heard:
        child.problem = "its reader could not begin"


def _checked(child: _Child, name: str) -> tuple[list[Frame], str]:
    """Return those runs of an answer that pass all checks, and one line on the others."""
    if child.problem:
        return [], child.problem
    try:
        answer = msgspec.msgpack.decode(bytes(child.heard), type=_Answer)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return [], clean_line(f"no answer that makes sense ({error})", 200)
    found, problem = [], answer.problem
    for seen in answer.runs[:MOST_RUNS]:
        try:
            found.append(_frame(seen, name))
        except (ValueError, rundir.RunDirError) as error:
            problem = str(error)
    return found, clean_line(problem, 200)


def _frame(seen: _Seen, name: str) -> Frame:
    frame = cleaned(seen.frame)
    run = rundir.check_name(frame.run)
    # A newer ddptop of that user's may know more states.
    if not frame.state or len(frame.state) > LONGEST or not 1 <= frame.world <= rundir.MOST_RANKS:
        raise ValueError(f"run {run} has a state or a world that cannot be")
    numbers = [seen.size_bytes or 0, *(getattr(frame, field) for field in RunFrame.__struct_fields__)]
    if not all(math.isfinite(each) and abs(each) < _LARGEST for each in numbers if isinstance(each, int | float)):
        raise ValueError(f"run {run} has a number that cannot be")
    return replace(whole(frame, ()), user=name, size_bytes=seen.size_bytes)
