"""The wall between the agent and the training: what fails on our side stops here and is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Faults:
    """Errors inside the agent, shown on the dashboard; the training never sees one."""

    def __init__(self) -> None:
        self.count = 0
        self.last: str | None = None

    def note(self, where: str, error: BaseException) -> None:
        """Count an error and keep it as the last one."""
        self.count += 1
        self.last = f"{where}: {type(error).__name__}: {error}"[:200].replace("\n", " ")

    def guard(self, hook: Callable[..., None]) -> Callable[..., None]:
        """Return `hook` as one that cannot raise."""

        def guarded(*args: Any) -> None:
            try:
                hook(*args)
            except Exception as error:
                self.note(hook.__name__, error)

        return guarded
