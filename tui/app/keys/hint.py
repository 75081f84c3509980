"""The hint of the first run: what to press next, said once on this machine, until that key was used.

It comes with the first verdict, or after half a minute without one.  That it was used is kept where the last
settings of a launch are; `look.hint = false` in the settings file turns it off for good.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Final

from ddptop.agent.client.frame import Frame
from ddptop.agent.client.host import state
from ddptop.agent.wire.frames import ENDED, OUTSIDE

QUIET_S: Final = 30.0
"""Seconds of a run that is shown, and has no verdict, after which the help is pointed out."""
WAITS: Final = "view.timeline"
STACKS: Final = "run.stacks"
HELP: Final = "app.help"
"""Ids of the actions that are pointed out."""
_USED: Final = "hint-used"
"""The file by which it is remembered that the hint was used."""


class FirstHint:
    """The next key, for somebody who has not pressed it yet."""

    def __init__(self) -> None:
        """Begin, where it was not used before."""
        self._used = False
        with contextlib.suppress(OSError):
            self._used = os.path.lexists(state.place(_USED))
        self._since: float | None = None
        """When a run was first shown, by the clock of the frames."""

    def text(self, frame: Frame, keys: Mapping[str, str]) -> str:
        """Return the hint for a frame, empty where there is none.

        Args:
            frame: what is shown.
            keys: by the id of an action, the key that does it.
        """
        if self._used or not frame.run or frame.state in ENDED or frame.all_ended or frame.state == "starting":
            return ""
        self._since = frame.at if self._since is None else self._since
        if frame.verdict is not None and frame.known_by == OUTSIDE:
            # Who waits in which step is not known there.
            return f"press {keys[STACKS]}: see where each rank stands"
        if frame.verdict is not None and frame.world > 1:
            return f"press {keys[WAITS]}: see who waits"
        if frame.verdict is not None or frame.at - self._since >= QUIET_S:
            return f"press {keys[HELP]} for all keys"
        return ""

    def use(self, action: str) -> None:
        """Take note of an action, by its id: the hint is over once it is one of those that it names."""
        if self._used or action not in (WAITS, STACKS, HELP):
            return
        self._used = True
        # Where it cannot be kept, the hint comes again with the next dashboard, which does no harm.
        with contextlib.suppress(ValueError):
            state.write(_USED, True)
