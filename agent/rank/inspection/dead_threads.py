"""The last thread of the script that ended by an exception: whoever waits for what it was to bring waits for ever."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Final

from ddptop.agent.rank.faults import describe
from ddptop.agent.run.script.stacks import OWN_THREADS
from ddptop.agent.text import clean_line

_LONGEST: Final = 120
"""Characters of the exception."""


class DeadThreads:
    """Looks at the exceptions that end threads, before Python or the script's own hook tells them."""

    def __init__(self) -> None:
        """See none yet."""
        self.last = ""
        """`thread prefetch died: KeyError('x')`."""

    def watch(self) -> None:
        """Look from now on, as long as the script does not put another hook in the place."""
        before = threading.excepthook

        def look(died: Any) -> None:
            with contextlib.suppress(Exception):
                name = str(getattr(died.thread, "name", ""))
                if died.exc_type is not SystemExit and not name.startswith(OWN_THREADS):
                    self.last = clean_line(f"thread {name} died: {describe(died.exc_value)}", _LONGEST)
            before(died)

        threading.excepthook = look
