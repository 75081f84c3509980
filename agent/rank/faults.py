"""The border between the agent and the training: errors of the agent are caught and counted here."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from ddptop.agent.text import clean_line

LONGEST: Final = 200
"""Characters of the description of an error at most."""
_OURS: Final = frozenset({"ddptop", "torch", "pynvml", *sys.stdlib_module_names})
"""The packages through which an error of the agent passes."""


def describe(error: BaseException, limit: int = LONGEST) -> str:
    """Return type and message of an exception in one clean line, even where its `__str__` raises."""
    name = type(error).__name__
    try:
        return clean_line(f"{name}: {error}", limit)
    except Exception:  # whatever the script's own class raises
        return f"{name}: its message cannot be had"[:limit]


def is_ours(error: BaseException) -> bool:
    """Say whether an error was raised by the agent, and not by a signal handler of the script that ran meanwhile."""
    trace = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0] not in _OURS:
            return False
        trace = trace.tb_next
    return True


class Faults:
    """Errors inside the agent, which the dashboard shows and the training does not notice."""

    def __init__(self) -> None:
        self.count = 0
        self.last: str | None = None

    def note(self, text: str, error: BaseException | None = None) -> None:
        """Count a fault and store its description as the last one. Never raises an `Exception`."""
        self.count += 1
        try:
            self.last = clean_line(text if error is None else f"{text}: {describe(error)}", LONGEST)
        except Exception:  # out of memory, or of the stack
            self.last = "a fault that cannot be described"

    @contextlib.contextmanager
    def noted(self, text: str) -> Iterator[None]:
        """Count an `Exception` of the block instead of raising it."""
        try:
            yield
        except Exception as error:
            self.note(text, error)

    def guard(self, hook: Callable[..., None]) -> Callable[..., None]:
        """Return a function that calls `hook` and counts its `Exception`s instead of raising them."""
        # A partial has no name of its own.
        name = str(getattr(getattr(hook, "func", hook), "__name__", "a hook"))

        def guarded(*args: Any) -> None:
            try:
                hook(*args)
            except Exception as error:
                self.note(name, error)

        return guarded
