"""An action that waits for ranks to come to a step: what it waits for, and whether the user has cancelled it.

The action runs in one thread; who shows it, and who cancels it, is in another.
"""

from __future__ import annotations

from collections.abc import Callable


class Waiting:
    """What is told of an action while it waits, and the wish to end it."""

    def __init__(self, told: Callable[[str], None] = lambda line: None) -> None:
        """Prepare; `told` takes each new line, from the action's thread."""
        self.line = ""
        """What the action waits for: `pausing: waiting for rank 1`. Empty: nothing that takes longer than a moment."""
        self.cancelled = False
        self._told = told

    def tell(self, line: str) -> None:
        """Take the line of this moment."""
        self.line = line
        self._told(line)

    def cancel(self) -> None:
        """End the action where it still waits; one that is decided stays as it is."""
        self.cancelled = True

    def is_cancelled(self) -> bool:
        """Say whether the action is to end."""
        return self.cancelled
