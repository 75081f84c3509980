"""The lines of the table where ranks are grouped by host: which there are, and how that of a host looks. Pure.

A line is the number of a rank, from 0, or the line of a host: -1 for the first of the hosts, -2 for the next.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from rich.segment import Segment

from ddptop.agent.client.frame import Frame
from ddptop.agent.text import plural
from ddptop.agent.wire.frames import HostFrames
from ddptop.agent.wire.hosts import HostFrame
from ddptop.tui.drawing import units
from ddptop.tui.drawing.lines import Row, figure, packed
from ddptop.tui.drawing.theme import MARKS, Ink
from ddptop.tui.model.diagnosis import hang

FOLDED: Final = "▸"
UNFOLDED: Final = "▾"
_WIDEST: Final = 24
"""Cells of the longest name of a host; what is longer is cut."""
_STATES: Final = 16
_SINCE: Final = len("not heard since 10:31:07")
"""Cells for the states of a host's ranks: where all hosts are heard, and where one is not."""
_NUMBER: Final = re.compile(r"\d+")


def natural(name: str | None) -> str | None:
    """Return what sorts names by the numbers in them: node2 comes before node10."""
    return None if name is None else _NUMBER.sub(lambda found: found[0].zfill(8), name)


def line_of(host: int) -> int:
    """Return the line of a host by its number."""
    return -1 - host


def host_of(line: int) -> int | None:
    """Return the number of the host of a line, None for that of a rank."""
    return -1 - line if line < 0 else None


def grouped(order: Iterable[int], hosts: HostFrames, folded: Collection[str]) -> tuple[list[int], dict[int, list[int]]]:
    """Return lines of ranks in an order, those of a host together behind the line of that host.

    A host stands where its first rank would. The ranks of one that is `folded` are left out. Ranks of which no host is
    known come last, under a line with the number after the last host.

    Returns:
        the lines, and by number of a host its ranks in that order.
    """
    nowhere = len(hosts)
    index = hosts.by_rank
    of_host: dict[int, list[int]] = {}
    for rank in order:
        of_host.setdefault(index.get(rank, nowhere), []).append(rank)
    if nowhere in of_host:
        of_host[nowhere] = of_host.pop(nowhere)
    lines: list[int] = []
    for number, ranks in of_host.items():
        lines.append(line_of(number))
        if number == nowhere or hosts[number].host not in folded:
            lines += ranks
    return lines, of_host


def states_of(host: HostFrame, states: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Return the states of a host's ranks, the most frequent first, each with how many have it."""
    return tuple(Counter(states[rank] for rank in host.ranks if rank < len(states)).most_common())


def host_row(
    host: HostFrame, states: Sequence[tuple[str, int]], frame: Frame, width: int, ink: Ink, *, folded: bool
) -> Row:
    """Return the line of a host: its name, its ranks, their states, its slowest step, and its clock."""
    name = units.fit(host.host, min(_WIDEST, max((len(each.host) for each in frame.hosts), default=0)))
    hue = "bold state-silent" if host.is_unheard else "bold brand"
    blamed = _blamed(host, frame) if folded else ""
    pieces: list[Row] = [
        [Segment(f"{FOLDED if folded else UNFOLDED} {name}", ink[hue])],
        [Segment(f"{plural(len(host.ranks), 'rank'):<9}", ink["value"])],
        [_states(host, states, _SINCE if any(each.is_unheard for each in frame.hosts) else _STATES, ink)],
        [Segment(blamed, ink["bold rank-slow"])],
        [figure(units.milliseconds(host.step_ms), ink), Segment(" ms/step", ink["label"])],
        [Segment("own ", ink["label"]), figure(units.milliseconds(host.own_ms), ink), Segment(" ms", ink["label"])],
        [Segment(clock_of(host), ink["label"])],
    ]
    return packed(pieces, width)


def nowhere_row(count: int, ink: Ink) -> Row:
    """Return the line above the ranks of which no host is known."""
    return [Segment(f"{UNFOLDED} {plural(count, 'rank')} not reported yet", ink["bold state-starting"])]


def _states(host: HostFrame, states: Sequence[tuple[str, int]], width: int, ink: Ink) -> Segment:
    if host.is_unheard:
        said = host.told.removeprefix(f"{host.host} is ")
        return Segment(f"{MARKS['silent']} {said:<{width}}", ink["bold state-silent"])
    if not states:
        return Segment(f"{units.DASH:<{width + 2}}", ink["faint"])
    first = states[0][0]
    said = first if len(states) == 1 else ", ".join(f"{count} {state}" for state, count in states[:3])
    return Segment(f"{MARKS.get(first, ' ')} {said:<{width}}", ink[f"state-{first}" if first in MARKS else "value"])


def _blamed(host: HostFrame, frame: Frame) -> str:
    """Return which rank of a folded host is named in a verdict."""
    ranks = set(host.ranks)
    hanging = sorted(hang.culprits(frame) & ranks)
    if hanging:
        return f"◀ rank {hanging[0]} hangs"
    verdict = frame.verdict
    return f"◀ rank {verdict.rank}" if verdict is not None and verdict.rank in ranks else ""


def clock_of(host: HostFrame) -> str:
    """Return how far a host's clock is from the head's: `clock +0.70 ±0.40 ms`; empty where that is not known."""
    if host.offset_ms is None or host.offset_error_ms is None:
        return ""
    if not host.offset_ms and not host.offset_error_ms:
        return "the clock of reference"
    return f"clock {offset(host.offset_ms)} ±{host.offset_error_ms:.2f} ms"


def offset(ms: float) -> str:
    """Return by how many ms a clock is off, with its sign."""
    return f"{ms:+,.2f}" if abs(ms) < 100 else f"{ms:+,.0f}"
