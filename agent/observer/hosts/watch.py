"""Hosts that are not heard, and that are heard again: events of the head, as they are noticed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ddptop.agent import wire
from ddptop.agent.observer.hosts import far
from ddptop.agent.text import clean_line, ranks_in_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


class Watch:
    """What was last told of each host."""

    def __init__(self, say: Callable[[str, str, int | None], None], clock: Callable[[], int] = time.time_ns) -> None:
        self._say = say
        self._clock = clock
        self._told: dict[str, str] = {}
        """By host, its state."""
        self._lost_ns: dict[str, int] = {}

    def turn(self, hosts: tuple[wire.HostState, ...], over: Collection[str]) -> bool:
        """Tell what has changed; return whether a host was lost since the last turn.

        Args:
            hosts: the other hosts, as they are now.
            over: hosts on which nothing of the run is left, so that their silence is no news.
        """
        lost = False
        for each in hosts:
            before = self._told.get(each.host)
            if before == each.state or not each.ranks:
                continue
            self._told[each.host] = each.state
            if each.host in over or set(each.ranks) <= set(each.gone):
                continue
            if each.state in (far.SILENT, far.GONE) and before is not None:
                lost = True
            self._tell(each, before)
        return lost

    def _tell(self, host: wire.HostState, before: str | None) -> None:
        name, ranks = clean_line(host.host, 60), ranks_in_spans(host.ranks)
        match host.state:
            case far.SILENT if before is not None:
                self._lost_ns[host.host] = host.heard_at_ns or self._clock()
                self._say(f"{name} is not heard since {clock(self._lost_ns[host.host])}: {ranks}", "error", None)
            case far.GONE if before is not None:
                since = self._lost_ns.setdefault(host.host, host.heard_at_ns or self._clock())
                self._say(f"{name} is gone, last heard at {clock(since)}: {ranks}", "error", None)
            case far.LINKED if host.host in self._lost_ns:
                seconds = max(0, self._clock() - self._lost_ns.pop(host.host)) / 1e9
                self._say(f"{name} is heard again after {seconds:.0f} s: {ranks}", "info", None)
            case far.LINKED if before is None:
                self._say(f"{name} is linked: {ranks}", "info", None)


def clock(at_ns: int) -> str:
    """Return a time of the wall clock as `10:31:07`."""
    try:
        return time.strftime("%H:%M:%S", time.localtime(at_ns / 1e9))
    except (OverflowError, ValueError, OSError):
        return "an unknown time"
