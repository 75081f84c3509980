"""The wait of a requester for an action: what that waits for, and whether it is to be cancelled.

The request runs in one thread; who shows it, and who cancels it, is in another.  The action itself, in the observer,
is an `Action` of `observer.actions`: only that knows ranks, hangs and the moment from which nothing can be cancelled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Waiting:
    """What an action waits for, and the wish to end it."""

    def __init__(self, show: Callable[[str], None] = lambda line: None, until: float = math.inf) -> None:
        """Prepare.

        Args:
            show: takes each new line, and an empty one once it waits no more, from the action's thread.
            until: the time, by the monotonic clock, at which it is cancelled.
        """
        self.line = ""
        """What the action waits for: `pausing: waiting for rank 1`. Empty: nothing that takes longer than a moment."""
        self.cancelled = False
        self._show = show
        self._until = until

    def tell(self, line: str) -> None:
        """Take the line of this moment."""
        if line != self.line:
            self.line = line
            self._show(line)

    def cancel(self) -> None:
        """End the action where it still waits; one that is decided stays as it is."""
        self.cancelled = True

    def is_cancelled(self) -> bool:
        """Say whether the action is to end."""
        return self.cancelled or time.monotonic() > self._until
