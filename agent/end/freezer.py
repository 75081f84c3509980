"""Freezing a run: its processes are stopped by SIGSTOP wherever they are, and continued later.

It serves groups that have no common step.  The timeout of a collective in flight runs on
while its ranks are stopped, so that a long freeze kills the run; hence the record of the beginning of a
freeze, for a countdown on every screen.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import msgspec

from ddptop.agent.end import processes
from ddptop.agent.end.escalation import counted
from ddptop.agent.end.processes import Target
from ddptop.agent.run import identity, records
from ddptop.agent.run.files import marks, private
from ddptop.agent.run.identity import STOPPED, is_stopped
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.wire.frames import ENDED
from ddptop.agent.wire.incoming import Label
from ddptop.agent.wire.vocabulary.refusals import Refused

_SETTLE_S: Final = 2.0


class Frozen(msgspec.Struct, frozen=True):
    """The record of a freeze: its beginning, its author, and the timeout that limits it."""

    at_ns: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    who: Label
    timeout_s: float | None = None
    """Timeout of collectives in its default process group; None where it is not known."""


def freeze(directory: RunDir, who: str, timeout_s: float | None) -> str:
    """Stop all ranks and their helpers; return the outcome in one line.

    Raises:
        Refused: there is nothing to stop, or the run is frozen already.
    """
    if (since := frozen(directory)) is not None:
        raise Refused(f"already frozen by {since.who}")
    if directory.read().state in ENDED or not (targets := _targets(directory)):
        raise Refused("no process of the run is alive")
    # Written first, so that the reason for a stopped rank can always be found.
    try:
        private.replace(marks.owned(_record(directory)), msgspec.json.encode(Frozen(time.time_ns(), who, timeout_s)))
    except OSError as error:
        raise Refused(f"{_record(directory)}: {error.strerror}; nothing is frozen without a note of it") from error
    stopped = _signal_all(directory, signal.SIGSTOP, lambda target: target.status not in STOPPED)
    if not stopped:
        _forget(directory)
        raise Refused("none of its processes could be stopped")
    ranks = sum(target.role == "rank" for target in targets)
    limit = "its collective timeout, which is not known" if timeout_s is None else f"{timeout_s:g} s"
    return f"frozen: {counted(ranks, len(targets) - ranks)} got SIGSTOP; a collective in progress fails after {limit}"


def thaw(directory: RunDir) -> str:
    """Continue the stopped processes; return the outcome in one line.

    Raises:
        Refused: no process is stopped.
    """
    since = frozen(directory)
    going = _signal_all(directory, signal.SIGCONT, lambda target: target.status in STOPPED)
    _forget(directory)
    if not going:
        raise Refused("not frozen")
    after = "" if since is None else f" after {(time.time_ns() - since.at_ns) / 1e9:.0f} s"
    return f"goes on{after}: {going} processes got SIGCONT"


def frozen(directory: RunDir) -> Frozen | None:
    """Return the record of the present freeze; None where no rank is stopped, whoever continued them."""
    try:
        record = records.decode(private.read(_record(directory)), Frozen)
    except (OSError, ValueError):
        return None
    return record if has_stopped(directory) else None


def has_stopped(directory: RunDir) -> bool:
    """Say whether a rank's process is stopped, whoever did it."""
    return any(is_stopped(member.process) for member in directory.members().values())


def _record(directory: RunDir) -> Path:
    return directory.path / "frozen.json"


def _forget(directory: RunDir) -> None:
    # Without a stopped rank the record has no effect.
    with contextlib.suppress(OSError):
        marks.owned(_record(directory)).unlink(missing_ok=True)


def _targets(directory: RunDir) -> list[Target]:
    # torchrun does not take part in the training, and continues to watch the ranks.
    found = processes.find(directory.read(), directory.members())
    return [target for target in found if target.role != "torchrun" and target.process.pid != os.getpid()]


def _signal_all(directory: RunDir, number: signal.Signals, due: Callable[[Target], bool]) -> int:
    """Signal processes until none is `due`, since helpers may be forked meanwhile; return how many were signalled."""
    reached: set[int] = set()
    deadline = time.monotonic() + _SETTLE_S
    while left := [target for target in _targets(directory) if due(target)]:
        for target in left:
            if identity.send(target.process, number):
                reached.add(target.process.pid)
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return len(reached)
