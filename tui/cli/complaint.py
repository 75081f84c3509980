"""Problems of the user's input and of the runs, each in one line on stderr."""

from __future__ import annotations

import sys


def complain(problem: object, code: int) -> int:
    """Print a problem in one line, on another machine for its user with the name of this one; return the exit code."""
    from ddptop.agent.text import clean
    from ddptop.tui.control import actor

    here = f"{actor.named}: " if actor.named else ""
    print(f"ddptop: {here}{clean(str(problem))}", file=sys.stderr)
    return code
