"""Ranks that work although their stacks stand still: bytes come or go, or their children or other threads compute.

A rank that waits for a socket on another connection than at the last look has come on, however few of the bytes were
seen: most come and go between two looks. Where it waits for something else, a thread of a library may have connected.

Work may come in pieces: whoever was seen to work once is believed to for a while, and for longer the rarer its pieces
come, so that the line about it does not change from moment to moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ddptop.agent.observer.judge.hang import place
from ddptop.agent.observer.judge.hang.looks import main_thread
from ddptop.agent.observer.judge.hang.progress import ONE
from ddptop.agent.observer.judge.standstill import LONGEST_S, NEWS_S, SHORT_S
from ddptop.agent.wire import Inspection, Work

FILES: Final = 8_000.0
"""Bytes a second that are work."""
SOCKETS: Final = 4_000.0
"""Libraries keep their connections alive with less."""
CHILDREN: Final = 10.0
"""Percent of a core: on a machine under load that is much."""
THREADS: Final = 10.0


@dataclass(frozen=True)
class _Known:
    """The work of one rank since the last step."""

    work: Work
    first_ns: int
    moved_ns: int | None = None
    longest_s: float = 0.0
    """Longest time without movement that has ended in one."""
    says: str = ""


class Activity:
    """The work of the ranks of a run that makes no steps."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._known: dict[int, _Known] = {}

    def note(self, ranks: Mapping[int, Inspection]) -> None:
        """Take in the inspections of one moment."""
        for rank, inspection in ranks.items():
            work, known = inspection.work, self._known.get(rank)
            does = place.place_of(main_thread(inspection)).does
            if work is None or (known is not None and work.at_ns <= known.work.at_ns):
                continue
            if known is None:
                self._known[rank] = _Known(work, work.at_ns)
            elif says := moved(known.work, work, reads=does in (place.SOCKETS, place.READS)):
                quiet_s = (work.at_ns - (known.moved_ns or known.first_ns)) / ONE
                longest_s = max(known.longest_s, quiet_s)
                self._known[rank] = replace(known, work=work, moved_ns=work.at_ns, longest_s=longest_s, says=says)
            else:
                self._known[rank] = replace(known, work=work)

    def says(self, rank: int) -> str | None:
        """Return how a rank works, without a subject; empty where that is not clear yet, None where it does not."""
        known = self._known.get(rank)
        if known is None:
            return None
        if known.moved_ns is None:
            return "" if known.work.at_ns - known.first_ns < SHORT_S * ONE else None
        believed_s = max(NEWS_S, min(2 * known.longest_s, LONGEST_S))
        return known.says if known.work.at_ns - known.moved_ns < believed_s * ONE else None


def moved(before: Work, after: Work, *, reads: bool = False) -> str:
    """Return how a rank has worked between two moments, empty where it has not; `reads`: it waits for a socket."""
    seconds = max(1e-3, (after.at_ns - before.at_ns) / ONE)
    received = (after.socket_bytes - before.socket_bytes) / seconds
    files = max(0, after.file_bytes - before.file_bytes) / seconds
    written = max(0, after.written_bytes - before.written_bytes) / seconds
    passed_on = max(0, after.child_bytes - before.child_bytes) / seconds
    child_cpu = max(0, after.child_cpu_ms - before.child_cpu_ms) / 10 / seconds
    threads = max(0, after.thread_cpu_ms - before.thread_cpu_ms) / 10 / seconds
    several = after.children > 1
    children = f"its {after.children} child processes" if several else "its child process"
    if received >= SOCKETS:
        return f"works: it reads from a socket, {_rate(received)}"
    if child_cpu >= CHILDREN:
        return f"works: {children} {'compute' if several else 'computes'}, {_percent(child_cpu)} CPU"
    # After these: what a child has read and written is its parent's as soon as it has ended.
    if files >= FILES:
        ways = ("reads" if files - written >= FILES / 2 else "", "writes" if written >= FILES / 2 else "")
        return f"works: it {' and '.join(filter(None, ways)) or 'reads'} files, {_rate(files)}"
    if passed_on >= FILES:
        return f"works: {children} {'move' if several else 'moves'} data, {_rate(passed_on)}"
    if threads >= THREADS:
        return f"works: its threads compute, {_percent(threads)} CPU"
    if reads and after.connections > before.connections:
        return "works: it opens one connection after the other"
    return ""


def _percent(value: float) -> str:
    return f"{round(value, -1):.0f}%"


def _rate(value: float) -> str:
    """Return two digits: more would be others at each look."""
    for unit in ("B/s", "kB/s", "MB/s"):
        if value < 999.5:
            return f"{float(f'{value:.2g}'):.{1 if value < 9.95 and unit != 'B/s' else 0}f} {unit}"
        value /= 1000
    return f"{float(f'{value:.2g}'):.1f} GB/s"
