"""Whether the network between hosts may be why collectives take long, as far as round trips tell. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Final

from ddptop.agent.wire import HostState

FAR: Final = 4.0
"""A host is far where the way to it and back takes so many times as long as to the others, or as it once did."""
LEAST_MS: Final = 1.0
"""What takes less is no reason."""


class Links:
    """The round trips between the observers of a run's hosts."""

    def __init__(self) -> None:
        self._rtt: dict[str, float] = {}
        self._least: dict[str, float] = {}

    def take(self, hosts: Iterable[HostState]) -> None:
        """Take in what is known of the hosts now."""
        self._rtt = {
            each.host: each.rtt_ms
            for each in hosts
            if each.state == "linked" and each.rtt_ms is not None and math.isfinite(each.rtt_ms)
        }
        least = {host: min(rtt, self._least.get(host, rtt)) for host, rtt in self._rtt.items()}
        self._least = least

    @property
    def remark(self) -> str:
        """Name the host to which the way is much longer than to others, or than it was; empty where there is none."""
        if not self._rtt:
            return ""
        host, rtt = max(self._rtt.items(), key=lambda pair: pair[1])
        others = [each for name, each in self._rtt.items() if name != host]
        usual = statistics.median(others) if others else self._least[host]
        if rtt < max(LEAST_MS, FAR * usual):
            return ""
        known = f"to others {_ms(usual)}" if others else f"at best {_ms(usual)}"
        return f"the network to {host} is slow: {_ms(rtt)} there and back, {known}"


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value >= 9.5 else f"{value:.1f} ms"
