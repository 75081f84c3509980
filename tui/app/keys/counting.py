"""The keys that type a number of steps, while the run is paused: they come before what the same keys do elsewhere.

What they do is in `screens.live`, whose `check_action` keeps each of them to where it does something; the app passes
them on to the topmost screen, where that shows a run.
"""

from __future__ import annotations

from typing import Final

from textual.binding import Binding

KEYS: Final = (
    *(
        Binding(
            str(digit),
            f"app.number('count', {digit})",
            "Count",
            id=f"run.count_{digit}",
            tooltip="While paused: type how many steps to make",
            show=False,
            # Before the views that have digits, too.
            priority=True,
        )
        for digit in range(10)
    ),
    Binding(
        "backspace",
        "app.number('uncount')",
        "Delete digit",
        id="run.count_back",
        tooltip="Number of steps: delete the last digit",
        show=False,
        priority=True,
    ),
    Binding(
        "escape",
        "app.number('forget_count')",
        "Clear",
        id="run.count_clear",
        tooltip="Number of steps: clear it",
        show=False,
        priority=True,
    ),
    Binding(
        "enter",
        "app.number('leave_count')",
        "View",
        id="run.count_view",
        tooltip="Number of steps: show the view of the digit instead",
        show=False,
        priority=True,
    ),
)
"""Bindings of the app."""
DIGITS: Final = frozenset(f"run.count_{digit}" for digit in range(10))
"""Ids of the digits: while the run is paused they come before whatever has the same key."""
PASSING: Final = frozenset({"run.count_back", "run.count_clear", "run.count_view"})
"""Ids of those that act only while a number is typed: another action may have the same key."""
