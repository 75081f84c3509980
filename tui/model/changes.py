"""What changes in a run from one moment to the next, told once: its event list and its verdict. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from ddptop.agent.run.rundir import Run
from ddptop.tui.model.frame import ENDED, EventLine, Verdict

EVENTS: Final = 500
REMAINING_SHARE: Final = 0.7
"""A verdict once told stays down to this part of the share from which it is told."""
_ACTED: Final = frozenset({"running", "pausing", "paused", "frozen"})
"""States that a run is moved between by actions, each of which is an event of its own."""


class Changes:
    """The newest events of a run, and what it was like when it was looked at last."""

    def __init__(self, verdict_share: float) -> None:
        """Know nothing yet; a verdict is told from this share of the step on."""
        self._verdict_share = verdict_share
        self.events: deque[EventLine] = deque(maxlen=EVENTS)
        self.verdict: Verdict | None = None
        """The one that is told."""
        self.held_since: float | None = None
        """When the run was first seen to be paused; None where it is not."""
        self._state: str | None = None
        self._ranks: Mapping[int, str] = {}

    def add(self, event: EventLine) -> None:
        """Take in what has been told by others."""
        self.events.append(event)

    def restart(self) -> None:
        """Forget the states of the ranks: they begin anew."""
        self._ranks = {}

    def note_state(self, now: float, state: str, run: Run) -> None:
        """Tell of a change of the run's state, unless whoever brought it about tells of it."""
        if state == self._state:
            return
        if state == "paused":
            self.held_since = now
        elif state in ("running", "starting") or state in ENDED:
            self.held_since = None
        # What a supervisor sees it tells itself, with the reason.
        told = (run.launched and (state in ENDED or state == "killing")) or _ACTED.issuperset({state, self._state})
        if self._state is not None and not told:
            code = "" if state not in ENDED or run.exit_code is None else f", exit code {run.exit_code}"
            self.add(EventLine(now, f"run {state}{code}" if state in ENDED else state, None, _level(state)))
        self._state = state

    def note_ranks(self, now: float, state: str, ranks: Mapping[int, str]) -> None:
        """Tell of ranks that have come into a state that others are to know of, in a run that is in `state`."""
        if ranks == self._ranks:
            return
        for rank, each in ranks.items():
            before = self._ranks.get(rank)
            if before not in (None, each) and (each in ("silent", "stalled") or each == "frozen" != state):
                self.add(EventLine(now, f"rank {rank} is {each}", rank, _level(each)))
        self._ranks = ranks

    def note_verdict(self, now: float, found: Verdict | None, step_ages: Iterable[float | None]) -> None:
        """Tell of a change of verdict once; its numbers may go on changing. The ages are those of the newest steps."""
        before, verdict = self.verdict, self._worth_telling(found)
        if self._state in ENDED:
            # Found in the recording of what is over: nothing that happens now.
            now -= min((age for age in step_ages if age is not None), default=0)
        if verdict is not None and (before is None or _accused(before) != _accused(verdict)):
            self.add(EventLine(now, verdict.text, verdict.rank, "warning"))
        elif verdict is None and before is not None:
            self.add(EventLine(now, f"no longer: {before.text}", before.rank, "info"))
        self.verdict = verdict

    def _worth_telling(self, verdict: Verdict | None) -> Verdict | None:
        """Leave out what costs too little; what is told already stays for somewhat less, lest it comes and goes."""
        if verdict is None or verdict.share is None:
            return verdict
        told = self.verdict is not None and _accused(self.verdict) == _accused(verdict)
        return verdict if verdict.share >= self._verdict_share * (REMAINING_SHARE if told else 1) else None


def _level(state: str) -> str:
    return {"failed": "error", "lost": "error", "silent": "warning", "stalled": "warning"}.get(state, "info")


def _accused(verdict: Verdict) -> tuple[str, int | None, str | None]:
    return verdict.kind, verdict.rank, verdict.phase
