"""How a script's end is told: its exit status, and its exception in two texts; whatever these are made of."""

from __future__ import annotations

import traceback
from types import TracebackType

from ddptop.agent.rank.faults import describe
from ddptop.agent.text import shorten

_LONGEST = 64 << 10
"""Bytes of what a script gives to `sys.exit`; the record is cut to less."""


def status(code: object) -> int:
    """Return the status that a process ends with that calls `sys.exit(code)`."""
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    # The interpreter takes what a C long does not hold for -1, and the system keeps the last 8 bits.
    return int(code) & 0xFF if -(2**63) <= code < 2**63 else 0xFF


def request(code: object) -> str:
    """Return what `sys.exit(code)` said, for a code that is not 0."""
    try:
        return shorten(f"SystemExit: {code}", _LONGEST)
    except Exception:
        return f"SystemExit: {type(code).__name__}"


def told(failure: BaseException, trace: TracebackType | None) -> tuple[str, str | None]:
    """Return type and message of an exception, and its traceback from `trace` on."""
    kind = type(failure)
    try:
        alone = traceback.TracebackException(kind, failure, None)
        alone.__dict__["__notes__"] = None  # they would come last
        error = list(alone.format_exception_only())[-1].strip()
    except Exception:
        error = describe(failure)
    try:
        return error, "".join(traceback.format_exception(kind, failure, trace))
    except Exception:
        return error, None
