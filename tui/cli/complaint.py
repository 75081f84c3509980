"""Problems of the user's input and of the runs, each in one line on stderr."""

from __future__ import annotations

import sys


def complain(problem: object, code: int) -> int:
    """Print a problem in one line and return the exit code."""
    from ddptop.agent.text import clean

    print(f"ddptop: {clean(str(problem))}", file=sys.stderr)
    return code
