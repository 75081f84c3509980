"""The decisions of the head, copied to the other hosts in their order; see `agent.run.decisions`.

A branch says up to which number it has all of them, once it is linked and after each one; the head sends what comes
after that.  So a link that was cut goes on where it ended.  A copy that knows more than the head, because the head was
on another host before, forgets the rest.  For use from the thread of the relay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ddptop.agent.run.decisions import LARGEST, RETAINED, Decisions

_MOST_AT_ONCE: Final = RETAINED
"""Decisions sent in one turn at most."""
_UNDER_WAY_S: Final = 2.0
"""Seconds after which a decision that a branch does not have was lost on its way."""


class Sent:
    """The side of the head."""

    def __init__(
        self,
        decisions: Decisions,
        send: Callable[[bytes, int, bytes], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Know no branch.

        Args:
            decisions: those of the run.
            send: sends a branch a number and a content; returns False where there is no room now.
            clock: a monotonic clock.
        """
        self.refused = 0
        """Numbers of branches that cannot be true."""
        self._decisions = decisions
        self._send = send
        self._clock = clock
        self._next: dict[bytes, int] = {}
        """By branch, the number of the decision to be sent next."""
        self._sent_at: dict[bytes, float] = {}

    def meet(self, peer: bytes) -> None:
        """Take note of a branch that is linked; it is sent nothing before it has said what it has."""
        self._next.pop(peer, None)

    def forget(self, peer: bytes) -> None:
        """Forget a branch that is gone."""
        self._next.pop(peer, None)

    def heard(self, peer: bytes, serial: int) -> None:
        """Take note of the number up to which a branch has all decisions."""
        if serial < 0:
            self.refused += 1
            return
        if serial + 1 < self._next.get(peer, 0) and self._clock() < self._sent_at.get(peer, 0.0) + _UNDER_WAY_S:
            # What was sent since is under way: a branch says this after each one.
            return
        newest = self._decisions.newest()
        if serial > newest:
            # An empty content: there is nothing after this number.
            if self._send(peer, newest, b""):
                self._next[peer] = newest + 1
                self._sent_at[peer] = self._clock()
            return
        # Those before are not on the disk any more, and concern nobody.
        self._next[peer] = max(serial + 1, newest - RETAINED + 1)
        self._advance(peer)

    def turn(self) -> None:
        """Send what was decided since; to be called before anything that follows from a decision is sent."""
        # This is called for each command to a rank: one look at the disk, however many branches there are.
        decided = {serial for serial in set(self._next.values()) if self._decisions.has(serial)}
        if decided:
            for peer in [peer for peer, serial in self._next.items() if serial in decided]:
                self._advance(peer)

    def _advance(self, peer: bytes) -> None:
        for _ in range(_MOST_AT_ONCE):
            serial = self._next[peer]
            content = self._decisions.read(serial) if self._decisions.has(serial) else None
            if content is None or not self._send(peer, serial, content):
                return
            self._next[peer] = serial + 1
            self._sent_at[peer] = self._clock()


class Received:
    """The side of a branch."""

    def __init__(self, decisions: Decisions, send: Callable[[int, bytes], bool]) -> None:
        """Know nothing; `send` sends the head a number and a content, and returns False where there is no room."""
        self.refused = 0
        """Messages that are no decision, or could not be written down."""
        self._decisions = decisions
        self._send = send

    def begin(self) -> None:
        """Say what is here: once the link is made, and again once a second, because what was sent may be lost."""
        self._send(self._decisions.newest(), b"")

    def take(self, serial: int, content: bytes) -> None:
        """Write down a decision of the head."""
        if serial < 0 or len(content) > LARGEST:
            self.refused += 1
            return
        if not content:
            self._decisions.forget_after(serial)
            return
        try:
            self._decisions.copy(serial, content)
        except OSError:
            # Said below with the number before it, so that the head sends it once more.
            self.refused += 1
        self._decisions.withdraw(serial)
        self._send(self._decisions.newest(), b"")
