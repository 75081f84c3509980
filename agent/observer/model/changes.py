"""What changes in a run from one moment to the next, told once: its event list and its verdicts. Pure.

The observer of the run judges; here its verdicts become lines of the event list, at the times at which they were told
and ended, also those of before anybody looked.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.model.ranks.rank import RankModel
from ddptop.agent.text import span
from ddptop.agent.wire.frames import ENDED, MOST_EVENTS, EventLine

REMAINING_SHARE: Final = 0.7
"""A verdict once shown stays down to this part of the share from which it is shown."""
_TIMES: Final = re.compile(r" \([\d,]+ times within a minute of each other\)$")
"""The end of an event that the record has once for many; see `agent.record.floods`."""
_ACTED: Final = frozenset({"running", "pausing", "paused", "held", "frozen"})
"""States that a run is moved between by actions, each of which is an event of its own."""


class Changes:
    """The newest events of a run, and what it was like when it was looked at last."""

    def __init__(self, verdict_share: float) -> None:
        """Know nothing yet; a verdict that costs less than this share of the step is hidden."""
        self._verdict_share = verdict_share
        self.events: list[EventLine] = []
        """In the order of their times, at most `MOST_EVENTS`."""
        self.verdicts: tuple[wire.Verdict, ...] = ()
        """Those that go on and are not hidden, the one that matters most first."""
        self.missing_steps = 0
        """Steps until a rank can be said to be slow, about; 0 where one can."""
        self._named_from_ms: float | None = None
        """Milliseconds a step from which a delay of any one rank would be found; None where none would, or one is."""
        self._going_on: dict[int, wire.Verdict] = {}
        """Verdicts that have begun and not ended, by number, the one that matters most first."""
        self._heard = False
        """True once the judge has said which of them matters most; the record does not tell."""
        self._begun: dict[int, wire.Verdict] = {}
        """Verdicts as they were first shown, by number."""
        self._ended: dict[int, EventLine | None] = {}
        """The line of the end of each verdict that has ended, None of one that was hidden; by number."""
        self.held_since: float | None = None
        """When the run was first seen to be paused; None where it is not."""
        self._state: str | None = None
        self._ranks: Mapping[int, str] = {}

    def add(self, event: EventLine) -> None:
        """Take in what has happened, once; a line of before goes where it belongs by its time."""
        place = bisect_right(self.events, event.at, key=_at)
        begin = bisect_left(self.events, event.at, 0, place, key=_at)
        for index in range(begin, place):
            known = self.events[index]
            # It was heard, and is read in the record, too, which counts repetitions: who has heard them has each.
            if (known.rank, known.level) == (event.rank, event.level) and _is_same(known.text, event.text):
                return
        self.events.insert(place, event)
        del self.events[:-MOST_EVENTS]

    def restart(self) -> None:
        """Forget the states of the ranks: they begin anew."""
        self._ranks = {}

    def note_state(self, now: float, state: str) -> None:
        """Tell of a change of the run's state, unless whoever brought it about tells of it."""
        if state == self._state:
            return
        if state in wire.HELD:
            self.held_since = now
        elif state in ("running", "starting") or state in ENDED:
            self.held_since = None
        # What an observer sees it tells itself, with the reason.
        told = state in (*ENDED, "killing", "ending") or _ACTED.issuperset({state, self._state})
        if self._state is not None and not told:
            self.add(EventLine(now, state, None, _level(state)))
        self._state = state

    def note_ranks(
        self,
        now: float,
        state: str,
        ranks: Mapping[int, str],
        withheld: Collection[int] = frozenset(),
        models: Mapping[int, RankModel] = MappingProxyType({}),
    ) -> None:
        """Tell of ranks that have come into a state that others are to know of, in a run that is in `state`.

        Nothing is told of those `withheld`: their whole host is not heard, which is one event, and the observer's.
        """
        if withheld:
            ranks = {**ranks, **{rank: self._ranks.get(rank, ranks[rank]) for rank in withheld}}
        if ranks == self._ranks:
            return
        for rank, each in ranks.items():
            before = self._ranks.get(rank)
            if before not in (None, each) and (each in ("silent", "stalled") or each == "frozen" != state):
                goes_on = models[rank].goes_on if each == "stalled" and rank in models else ""
                text = f"rank {rank} {goes_on or f'is {each}'}"
                self.add(EventLine(now, text, rank, _level(each)))
        self._ranks = ranks

    def note_verdicts(
        self, at_ns: int, verdicts: Sequence[wire.Verdict], missing_steps: int = 0, named_from_ms: float | None = None
    ) -> None:
        """Take in all verdicts of a moment: what went on before and is none of them has ended by then."""
        present = {verdict.number: verdict for verdict in verdicts}
        for number in present.keys() & self._ended.keys():
            # The observer has been replaced meanwhile, and the new one has found again what the first one told.
            line = self._ended.pop(number)
            if line in self.events:
                self.events.remove(line)
        for number, verdict in self._going_on.items():
            if number in present:
                continue
            if verdict.since_at_ns > at_ns:
                # It was read from the record of an observer whose clock was ahead.
                present[number] = verdict
            else:
                self._tell_end(number, at_ns)
        for verdict in verdicts:
            self._tell_line(verdict, at_ns)
        self._going_on, self._heard = present, True
        self.missing_steps, self._named_from_ms = missing_steps, named_from_ms
        self._show()

    def named_from_ms(self, step_ms: float | None) -> float | None:
        """Return from how many ms on a delay in steps of `step_ms` is told and shown; None where none is."""
        if self._named_from_ms is None or step_ms is None or self._verdict_share >= 1:
            return None
        return max(self._named_from_ms, step_ms * self._verdict_share / (1 - self._verdict_share))

    def recall_verdict(self, recorded: wire.Verdict) -> None:
        """Take in a recorded verdict; without an end, it went on at the end of the run, or goes on."""
        number, until = recorded.number, recorded.until_at_ns
        if number in self._ended:
            return
        if until is None:
            # What the observer says of it now is newer.
            self._going_on.setdefault(number, recorded)
        else:
            self._going_on.pop(number, None)
            if not self._is_hidden(recorded):
                self._tell_beginning(recorded)
            self._tell_end(number, until)
        self._show()

    def _show(self) -> None:
        shown = [verdict for verdict in self._going_on.values() if not self._is_hidden(verdict)]
        if not self._heard:
            shown.sort(key=lambda verdict: verdict.share or 0.0, reverse=True)
        for verdict in shown:
            self._tell_beginning(verdict)
        self.verdicts = tuple(shown)

    def _is_hidden(self, verdict: wire.Verdict) -> bool:
        """Say whether it costs too little; what is shown stays for somewhat less, lest it comes and goes."""
        remains = REMAINING_SHARE if verdict.number in self._begun else 1
        return verdict.share is not None and verdict.share < self._verdict_share * remains

    def _tell_beginning(self, verdict: wire.Verdict) -> None:
        if verdict.number not in self._begun:
            self._begun[verdict.number] = verdict
            said = EventLine(verdict.told_at_ns / 1e9, _begun(verdict), verdict.rank, verdict.level, verdict.number)
            self.add(said)
            _bound(self._begun)

    def _tell_line(self, verdict: wire.Verdict, at_ns: int) -> None:
        """Tell the line or the cause behind a verdict, which is found some seconds after its beginning was told."""
        begun = self._begun.get(verdict.number)
        found = verdict.cause or verdict.line
        if begun is not None and found and not (begun.cause or begun.line):
            self._begun[verdict.number] = msgspec.structs.replace(begun, line=verdict.line, cause=verdict.cause)
            where = "" if verdict.rank is None else f"rank {verdict.rank}: "
            said = verdict.cause or f"{verdict.line_share or 0.0:.0%} of that delay is at {verdict.line}"
            text = f"{where}{said}"
            self.add(EventLine(at_ns / 1e9, text, verdict.rank, "info", verdict.number))

    def _tell_end(self, number: int, at_ns: int) -> None:
        begun, line = self._begun.get(number), None
        if begun is not None:
            line = EventLine(max(at_ns, begun.told_at_ns) / 1e9, _end_of(begun, at_ns), begun.rank, "info")
            self.add(line)
        self._ended[number] = line
        _bound(self._ended)


def _at(event: EventLine) -> float:
    return event.at


def _is_same(one: str, other: str) -> bool:
    """Say whether two texts are of the same event, which either may count."""
    if one == other or not (one.startswith(other) or other.startswith(one) or one[-1:] == other[-1:] == ")"):
        return one == other
    return _TIMES.sub("", one) == _TIMES.sub("", other)


def _begun(verdict: wire.Verdict) -> str:
    """Return the line of a verdict that was just told, with the time of its beginning where that was before."""
    since_s, said_s = verdict.since_at_ns // 10**9, verdict.told_at_ns // 10**9
    since = f" (since {time.strftime('%H:%M:%S', time.localtime(since_s))})" if since_s < said_s else ""
    return f"{verdict.ageless}{since}"


def _end_of(begun: wire.Verdict, at_ns: int) -> str:
    if begun.hang is None:
        return f"no longer: {begun.text}"
    return f"over after {span((at_ns - begun.since_at_ns) / 1e9)}: {begun.ageless}"


def _level(state: str) -> str:
    return {"failed": "error", "lost": "error", "silent": "warning", "stalled": "warning"}.get(state, "info")


def _bound(numbers: dict[int, Any]) -> None:
    """Forget the oldest where there are more than events."""
    while len(numbers) > MOST_EVENTS:
        del numbers[next(iter(numbers))]
