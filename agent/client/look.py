"""One look at some runs, or one after the other at a run: each as soon as every rank was heard, or had time enough."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ddptop.agent.client.frame import Frame
from ddptop.agent.client.runs import Run, RunDirError
from ddptop.agent.client.watch import Watch
from ddptop.agent.wire.frames import ENDED

PATIENCE_S = 2.0
"""How long a live rank is given to be heard: twice the period of its heartbeat."""
LONGER_S = 5.0
"""The same at most, for a rank of which there is no other sign: until it is known to be silent."""
POLL_S = 0.05


def frames(
    found: Sequence[Run],
    who: str,
    *,
    onlooker: bool = False,
    measured: bool = True,
) -> list[Frame]:
    """Return the present frame of each run, see `heard`; an `onlooker` changes nothing about any of them.

    Where they are `measured`, the frames have the bytes of the runs on disk.
    """
    with contextlib.ExitStack() as stack:
        watches = []
        for run in found:
            is_another_users = run.directory.owner != os.getuid()
            # Removed, or damaged, since it was listed, it is left out.
            with contextlib.suppress(RunDirError):
                watches.append(stack.enter_context(Watch(run, who, onlooker=onlooker or is_another_users)))
        shown = heard(watches)
        if not measured:
            return shown
        return [replace(frame, size_bytes=watch.run.size()) for watch, frame in zip(watches, shown, strict=True)]


def heard(watches: Sequence[Watch]) -> list[Frame]:
    """Poll until all is known of every run, or has had time enough, and return the frames of then.

    The observer of a run sends at once what it knows of all ranks, also of those that are silent. Only where it is gone
    or has just come there is something to wait for.
    """
    began = time.monotonic()
    while True:
        for watch in watches:
            watch.poll()
        waited = time.monotonic() - began
        if waited > PATIENCE_S or all(watch.complete for watch in watches):
            found = [watch.frame() for watch in watches]
            if waited > LONGER_S or not any(map(_is_doubtful, found)):
                return found
        time.sleep(0.005)


def follow(watch: Watch, every_s: float) -> Iterator[Frame]:
    """Yield a frame at once and every so many seconds, the last one when the run has ended; waits in between."""
    frame, due = heard([watch])[0], time.monotonic()
    while True:
        is_over = frame.state in ENDED
        if is_over or time.monotonic() >= due:
            due += every_s
            yield frame
        if is_over:
            return
        time.sleep(POLL_S)
        watch.poll()
        frame = watch.frame()


def _is_doubtful(frame: Frame) -> bool:
    """Say whether a rank that should be heard is not, and nothing shows its state yet."""
    return frame.state not in ENDED and any(
        rank.state == "starting" and rank.pid is not None and rank.heard_age_s is None for rank in frame.ranks
    )
