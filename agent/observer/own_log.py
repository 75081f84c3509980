"""The log of the observer itself: on its stderr, which goes to a file, in clean lines."""

from __future__ import annotations

import logging

from ddptop.agent.text import clean


class CleanFormatter(logging.Formatter):
    """Removes escape sequences and control characters from the log."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the clean lines of a record."""
        return "\n".join(map(clean, super().format(record).splitlines()))


def begin() -> None:
    """Send what is logged to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(CleanFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
