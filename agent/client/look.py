"""One look at some runs: what stands there as soon as every rank has been heard, or has had time enough."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from msgspec.structs import replace

from ddptop.agent.client.frame import Frame
from ddptop.agent.client.runs import Run, RunDirError
from ddptop.agent.client.watch import Link
from ddptop.agent.wire.frames import ENDED

PATIENCE_S = 2.0
"""How long a live rank is given to be heard: twice the period of its heartbeat."""
LONGER_S = 5.0
"""The same at most, for a rank of which there is no other sign: until it is known to be silent."""


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
    links = []
    for run in found:
        is_another_users = run.directory.owner != os.getuid()
        try:
            links.append(Link(run.directory, who, onlooker=onlooker or is_another_users))
        except RunDirError:
            # Removed, or damaged, since it was listed.
            continue
    try:
        shown = heard(links)
        if not measured:
            return shown
        return [replace(frame, size_bytes=Run(link.directory).size()) for link, frame in zip(links, shown, strict=True)]
    finally:
        for link in links:
            link.close()


def heard(links: Sequence[Link]) -> list[Frame]:
    """Poll until all is known of every run, or has had time enough, and return the frames of then.

    The observer of a run sends at once what it knows of all ranks, also of those that are silent. Only where it is gone
    or has just come there is something to wait for.
    """
    began = time.monotonic()
    while True:
        for link in links:
            link.poll()
        waited = time.monotonic() - began
        if waited > PATIENCE_S or all(link.complete for link in links):
            frames = [_frame_now(link) for link in links]
            if waited > LONGER_S or not any(map(_is_doubtful, frames)):
                return frames
        time.sleep(0.005)


def _is_doubtful(frame: Frame) -> bool:
    """Say whether a rank that should be heard is not, and nothing shows its state yet."""
    return frame.state not in ENDED and any(
        rank.state == "starting" and rank.pid is not None and rank.heard_age_s is None for rank in frame.ranks
    )


def _frame_now(source: Link) -> Frame:
    """Move a run on to this moment, and return the frame of it."""
    source.advance(time.time())
    return source.frame()
