"""The entries of several logs in one order, and what several ranks print alike once.

The order of each log stays.  Between logs it is that of the times, where there are any.  Entries without a time are
lined up by what they have in common, and by their number: that is a way to read them, and says nothing of when they
were written.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ddptop.agent.client.logs.entries import Entry
from ddptop.agent.text import spans

AHEAD: Final = 64
"""Entries of each log among which those that others have too are looked for."""
_TOGETHER_S: Final = 2.0
"""Seconds within which the same text of several ranks counts as one."""
_SHORTEST: Final = 4
"""Characters of a text for which a log waits until others have come to it: an empty line aligns nothing."""

_Place = tuple[float, float]
_Said = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """An entry, and the logs that have it."""

    entry: Entry
    logs: tuple[int, ...]
    """Numbers of the logs, ascending."""


class _Log:
    """One log: what comes next of it."""

    def __init__(self, entries: Iterable[Entry], *, backwards: bool) -> None:
        self._entries = iter(entries)
        self._sign = -1.0 if backwards else 1.0
        self.ahead: deque[tuple[Entry, _Said]] = deque()
        self.taken = 0
        """Entries that are no longer ahead."""
        self.shift = 0
        """The number that is added to that of an entry, because others had more lines."""
        self.waited = -1
        """The entry that has waited for others; it does so once."""

    def pull(self) -> _Said | None:
        entry = next(self._entries, None)
        if entry is None:
            return None
        said = entry.said
        self.ahead.append((entry, said))
        return said

    def place(self, number: int) -> tuple[_Place, int]:
        """Return the place among all logs of the entry with this number."""
        epoch, moment = self.ahead[number - self.taken][0].order
        return (self._sign * epoch, self._sign * moment), number + self.shift


def merged(logs: Sequence[Iterable[Entry]], *, backwards: bool = False) -> Iterator[Merged]:
    """Yield the entries of all logs, identical ones of several logs once.

    Of each log no more than `AHEAD` entries are read before they are yielded.

    Args:
        logs: the entries of each log, in the order written; last first where `backwards`.
        backwards: yield from the last to the first, so that logs are lined up by their ends.
    """
    return _Merging(logs, backwards=backwards).run()


class _Merging:
    def __init__(self, logs: Sequence[Iterable[Entry]], *, backwards: bool) -> None:
        self._logs = [_Log(entries, backwards=backwards) for entries in logs]
        self._sign = -1 if backwards else 1
        self._where: dict[_Said, dict[int, deque[int]]] = {}
        """By text, the logs that have it ahead, with the numbers of the entries."""
        self._heap: list[tuple[tuple[_Place, int], int, int]] = []
        """Place of the next entry of a log, number of the log (negative where backwards), number of the entry."""

    def run(self) -> Iterator[Merged]:
        for number, log in enumerate(self._logs):
            while len(log.ahead) < AHEAD and self._pull(number):
                pass
            self._queue(number)
        while self._heap:
            _, number, head = heapq.heappop(self._heap)
            number *= self._sign
            log = self._logs[number]
            if head != log.taken or not log.ahead:
                # It went with another log's.
                continue
            alike = self._alike(number)
            later = [other for other, place in alike.items() if place > self._logs[other].taken]
            if later and log.waited != head:
                log.waited = head
                places = [self._logs[other].place(alike[other]) for other in later]
                log.shift = max(log.shift, max(place[1] for place in places) - head)
                heapq.heappush(self._heap, (max(log.place(head), *places), self._sign * number, head))
                continue
            together = sorted([number, *(other for other in alike if other not in later)])
            first, _ = self._logs[together[0]].ahead[0]
            for each in together:
                self._take(each)
            yield Merged(first, tuple(together))

    def _alike(self, number: int) -> dict[int, int]:
        """Return the other logs that have the next entry of a log ahead, at about its time, and its number there."""
        entry, said = self._logs[number].ahead[0]
        found = {}
        for other, numbers in self._where[said].items():
            place = numbers[0]
            log = self._logs[other]
            if other == number or (place > log.taken and sum(map(len, said)) < _SHORTEST):
                continue
            if _near(entry, log.ahead[place - log.taken][0]):
                found[other] = place
        return found

    def _pull(self, number: int) -> bool:
        log = self._logs[number]
        said = log.pull()
        if said is None:
            return False
        place = log.taken + len(log.ahead) - 1
        self._where.setdefault(said, {}).setdefault(number, deque()).append(place)
        return True

    def _take(self, number: int) -> None:
        log = self._logs[number]
        _, said = log.ahead.popleft()
        log.taken += 1
        numbers = self._where[said][number]
        numbers.popleft()
        if not numbers:
            del self._where[said][number]
            if not self._where[said]:
                del self._where[said]
        self._pull(number)
        self._queue(number)

    def _queue(self, number: int) -> None:
        log = self._logs[number]
        if log.ahead:
            heapq.heappush(self._heap, (log.place(log.taken), self._sign * number, log.taken))


def _near(one: Entry, other: Entry) -> bool:
    """Say whether two entries can be of the same moment."""
    if one.order == other.order or one.at is None or other.at is None:
        return one.order[0] == other.order[0]
    return abs(one.at - other.at) <= _TOGETHER_S


def named(numbers: Sequence[int], most: int = 4) -> str:
    """Return numbers of ranks, ascending, in few characters: `0-3`, `0,2,5`, `512 ranks` where they have more parts."""
    parts = spans(numbers)
    return ",".join(parts) if len(parts) <= most else f"{len(numbers):,} ranks"
