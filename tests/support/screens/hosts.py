"""Frames of runs over several hosts; run as a program it shows a moving one.

python tests/support/screens/hosts.py [HOSTS] [RANKS_OF_EACH]
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire.frames import HostFrames
from ddptop.agent.wire.hosts import HostFrame
from support.screens.frames import NOW, MovingSource, frame


def hosts_of(count: int, each: int, silent: Collection[int] = (), *, compared: bool = True) -> HostFrames:
    """Return so many hosts with `each` so many ranks; their clocks are `compared` with that of the first."""
    return HostFrames(
        [
            HostFrame(
                f"node{number}",
                "silent" if number in silent else "linked",
                tuple(range(number * each, (number + 1) * each)),
                NOW - 12.0 if number in silent else NOW - 0.4,
                (0.7 * number if compared or not number else None),
                (0.4 * bool(number) if compared or not number else None),
                0.2 if number else None,
                "0.9.0",
                number,
                93.4 if number == 0 else 81.3,
                80.2 if number == 0 else 70.1,
            )
            for number in range(count)
        ]
    )


def hosted(count: int = 2, each: int = 2, silent: Collection[int] = (), **changes: Any) -> Frame:
    """Return a running group on so many hosts, of which some are silent."""
    hosts = hosts_of(count, each, silent)
    whole = frame(world=count * each, one_host=None, hosts=hosts)
    ranks = []
    for rank in whole.ranks:
        host = hosts.of(rank.rank)
        assert host is not None
        told = replace(rank, host=host.host, far=rank.rank >= each)
        if host.is_unheard:
            told = replace(told, state="silent", activity=host.told, heard_age_s=12.0)
        ranks.append(told)
    return replace(whole, **{"ranks": tuple(ranks), **changes})


class MovingHosts(MovingSource):
    """A run of fake ranks on several hosts that never stand still."""

    def __init__(self, count: int = 2, each: int = 2) -> None:
        super().__init__(count * each)
        self.current = hosted(count, each)


if __name__ == "__main__":
    from ddptop.tui.app.program import run_dashboard

    raise SystemExit(run_dashboard(MovingHosts(*map(int, sys.argv[1:3]))))
