"""The wall between the agent and the training: what fails on our side stops here and is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ddptop.agent.text import clean_line

LONGEST: Final = 200
"""Characters of what is told of an error."""


def describe(error: BaseException, limit: int = LONGEST) -> str:
    """Return type and message of an exception in one clean line; its own `__str__` may raise, or return anything."""
    name = type(error).__name__
    try:
        return clean_line(f"{name}: {error}", limit)
    except Exception:
        return f"{name}: its message cannot be had"[:limit]


class Faults:
    """Errors inside the agent, shown on the dashboard; the training never sees one."""

    def __init__(self) -> None:
        self.count = 0
        self.last: str | None = None

    def note(self, where: str, error: BaseException) -> None:
        """Count an error and remember it as the last one. Never raises an `Exception`."""
        self.tell(where, error)

    def tell(self, text: str, error: BaseException | None = None) -> None:
        """Count a fault, told in one line, with what was raised where something was. Never raises an `Exception`."""
        self.count += 1
        try:
            self.last = clean_line(text if error is None else f"{text}: {describe(error)}", LONGEST)
        except Exception:
            self.last = "a fault that cannot be described"

    def guard(self, hook: Callable[..., None]) -> Callable[..., None]:
        """Return `hook` as one that cannot raise."""
        # A partial has no name of its own.
        name = str(getattr(getattr(hook, "func", hook), "__name__", "a hook"))

        def guarded(*args: Any) -> None:
            try:
                hook(*args)
            except Exception as error:
                self.note(name, error)

        return guarded
