"""Another host of the run, as the head knows it, and how much may come from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ddptop.agent.observer.hosts.link.peer import Peer
from ddptop.agent.observer.hosts.parts import Mirror, Subscriptions
from ddptop.agent.run.records import Member

_RATE: Final = 50
"""Messages of each rank in a second, which is more than it publishes."""
_RATE_BYTES: Final = 1 << 20
"""The same of their bytes."""
_COMMANDS: Final = 2_000
"""Commands of a branch in a second: to each of a thousand ranks two."""
_BURST_S: Final = 10.0
"""So much may come at once, after so many seconds without."""


@dataclass
class Allowance:
    """What a branch may send: messages, bytes or commands, by the second."""

    rate: float = 0.0
    left: float = -1.0
    at: float = 0.0

    def take(self, amount: float, now: float) -> bool:
        """Say whether so much may be taken in now, and count it if so."""
        if self.left < 0:
            self.left = self.rate * _BURST_S
        else:
            self.left = min(self.rate * _BURST_S, self.left + (now - self.at) * self.rate)
        self.at = now
        if amount > self.left:
            return False
        self.left -= amount
        return True


@dataclass
class Connected:
    """Another host of the run."""

    peer: Peer
    subscriptions: Subscriptions
    mirror: Mirror
    messages: Allowance = field(default_factory=Allowance)
    bytes: Allowance = field(default_factory=Allowance)
    commands: Allowance = field(default_factory=lambda: Allowance(_COMMANDS))
    session: int = -1
    members: dict[int, Member] = field(default_factory=dict)
    ranks: frozenset[int] = frozenset()
    """Those of its ranks that are taken for its own."""
    summaries: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By rank, generation and number of its newest summary."""
    state: str = ""
    refused: int = 0
    otherwise_since: float | None = None
    """When it was first seen that it counts the restarts of the group otherwise than this host."""
    told_otherwise: bool = False

    def allow(self, ranks: int) -> None:
        """Take so much of it as so many ranks may publish."""
        self.messages.rate, self.bytes.rate = 200 + _RATE * ranks, (8 << 20) + _RATE_BYTES * ranks
