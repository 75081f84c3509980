"""The end of a script as status and text: its exit status, and its exception, whatever objects these are."""

from __future__ import annotations

import contextlib
import re
import traceback
from types import TracebackType
from typing import Final

from ddptop.agent.rank.faults import describe
from ddptop.agent.text import shorten

_LONGEST = 64 << 10
"""Bytes of the argument of `sys.exit` as text; the record is cut further."""
_QUOTED: Final = r"\n(?:[^\n]*(?i:traceback)[^\n]*:\s*\n|Original )?\s*Traceback \(most recent call last\):\n"
"""The beginning of a traceback in a message, such as that of a data worker, and the line above that introduces it."""


def status(code: object) -> int:
    """Return the exit status of a process that calls `sys.exit(code)`."""
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    # The interpreter turns a number beyond a C long into -1, and the system truncates the status to 8 bits.
    return int(code) & 0xFF if -(2**63) <= code < 2**63 else 0xFF


def request(code: object) -> str:
    """Return the text of `sys.exit(code)`, for a code that is not 0."""
    try:
        return shorten(f"SystemExit: {code}", _LONGEST)
    except Exception:  # raised by the script's own `__str__`
        return f"SystemExit: {type(code).__name__}"


def texts(failure: BaseException, trace: TracebackType | None) -> tuple[str, str | None]:
    """Return type and message of an exception, and its traceback from `trace` on."""
    kind = type(failure)
    try:
        alone = traceback.TracebackException(kind, failure, None)
        alone.__dict__["__notes__"] = None  # notes would be the last line
        error = _brief(list(alone.format_exception_only())[-1].strip())
    except Exception:  # raised by the script's own class, as below
        error = describe(failure)
    for _ in range(2):
        # Once more, because a signal handler may have raised: torch's, which hears a moment later that a data worker
        # has died.
        with contextlib.suppress(Exception):
            return error, "".join(traceback.format_exception(kind, failure, trace))
    return error, None


def _brief(error: str) -> str:
    """Return type and message of an exception, with only the last line of a traceback that the message quotes."""
    said, *quoted = re.split(_QUOTED, error)
    return f"{said.rstrip()} {quoted[-1].splitlines()[-1].strip()}" if quoted and quoted[-1].strip() else error
