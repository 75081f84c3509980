"""Where the ranks of a run stand, for people: ranks at the same place together, the odd ones first. Pure.

Verb and screen show the lines that are made here. Text of an inspection was cleaned where it came in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from ddptop.agent import wire
from ddptop.agent.client.diagnosis.stacks import Stacks
from ddptop.agent.text import plural, size, spans
from ddptop.tui.drawing import units

RANKS, CALL, NOTE, THREAD, HERE, USER, LIBRARY, FOLDED = (
    "ranks", "call", "note", "thread", "here", "user", "library", "folded",
)  # fmt: skip
"""Kinds of lines: the head of a place, a collective, a remark, the head of a further thread, the user's line at which a
rank stands, another line of the user's, a line of a library, and lines that are folded into one."""

_ODD: Final = frozenset({"stopped", "tracing-stop", "disk-sleep", "zombie", "dead"})
"""Statuses of a process by which its rank differs from others at the same place."""
_STRETCHES: Final = 6
"""Stretches of ranks that are named at most."""
_GROUPS: Final = 3
"""Process groups that are named at most."""
_ROOTS: Final = ("site-packages", "dist-packages")
_OURS: Final = "ddptop"
_NATIVE: Final = ".so"
"""In the name of every shared library: `libc.so.6`."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a place."""

    kind: str
    """As named at the head of this module."""
    text: str
    source: str = ""
    """The text of the source line, or facts behind the head of a place."""


@dataclass(frozen=True, slots=True)
class Place:
    """The ranks that stand at one place: the same stacks, in the same collective."""

    ranks: tuple[int, ...]
    inspections: tuple[wire.Inspection, ...]
    """Of these ranks, in order; none where the `reason` is all there is."""
    reason: str = ""
    culprit: bool = False
    """True where one of them is the cause of a hang."""


def places(stacks: Stacks, culprits: Collection[int] = (), first: int | None = None) -> list[Place]:
    """Return the places, the odd ones first.

    The place of rank `first` comes before all others, then those of the `culprits` of a hang, then those of few ranks,
    and among these the ones outside of any collective.
    """
    alike: dict[object, list[wire.Inspection]] = {}
    for inspection in sorted(stacks.inspections, key=lambda each: each.rank):
        alike.setdefault(_place(inspection), []).append(inspection)
    reasons: dict[str, list[int]] = {}
    for rank, reason in sorted(stacks.unknown.items()):
        reasons.setdefault(reason, []).append(rank)
    found = [
        *(_made(tuple(each.rank for each in group), tuple(group), "", culprits) for group in alike.values()),
        *(_made(tuple(ranks), (), reason, culprits) for reason, ranks in reasons.items()),
    ]
    return sorted(
        found,
        key=lambda place: (
            first not in place.ranks,
            not place.culprit,
            len(place.ranks),
            any(each.open for each in place.inspections),
            place.ranks,
        ),
    )


def _made(
    ranks: tuple[int, ...], inspections: tuple[wire.Inspection, ...], reason: str, culprits: Collection[int]
) -> Place:
    return Place(ranks, inspections, reason, not set(ranks).isdisjoint(culprits))


def lines_of(found: Sequence[Place]) -> list[list[Line]]:
    """Return the lines of each place, its head first."""
    awaited = {call.group for place in found for each in place.inspections for call in each.open}
    return [_lines(place, awaited) for place in found]


def named(ranks: Sequence[int]) -> str:
    """Return `rank 1`, `ranks 0-2, 5 (4)`; of scattered ranks the first stretches, and how many there are."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    stretches = spans(ranks)
    more = ["…"] if len(stretches) > _STRETCHES else []
    return f"ranks {', '.join(stretches[:_STRETCHES] + more)} ({len(ranks):,})"


# What makes a place


def _place(inspection: wire.Inspection) -> object:
    """Return what ranks at one place have in common: the age of a call and a number of CPU are not part of it."""
    call = _awaited_call(inspection)
    return (
        inspection.by,
        inspection.problem,
        inspection.status if inspection.status in _ODD else "",
        None if call is None else (call.op, call.number, call.bytes, call.blocking, call.sure),
        tuple((thread.holds_gil, *map(_spot, thread.frames)) for thread in _told(inspection)),
    )


def _spot(frame: wire.Frame) -> tuple[str, str, int]:
    # A library that polls is at another of its lines each time.
    return frame.file, frame.function, 0 if frame.library else frame.line


def _told(inspection: wire.Inspection) -> list[wire.Thread]:
    """Return the threads whose stacks are shown: the main thread, and those that execute code of the user's."""
    main, *others = _main_first(inspection.threads) or [wire.Thread("")]
    return [main, *(thread for thread in others if not all(frame.library for frame in thread.frames))]


def _main_first(threads: Sequence[wire.Thread]) -> list[wire.Thread]:
    return sorted(threads, key=lambda thread: not thread.main)


def _awaited_call(inspection: wire.Inspection) -> wire.OpenCall | None:
    """Return the call in which the rank stands: the one that blocks it, else the oldest that surely is not complete."""
    return min(inspection.open, key=lambda call: (not call.blocking, not call.sure), default=None)


# The lines of a place


def _lines(place: Place, awaited: Collection[str]) -> list[Line]:
    if not place.inspections:
        return [Line(RANKS, named(place.ranks)), Line(NOTE, place.reason)]
    one = place.inspections[0]
    lines = [Line(RANKS, named(place.ranks), " · ".join(_facts(place.inspections)))]
    lines += [Line(CALL, text) for text in _calls(place.inspections, awaited)]
    if one.exception:
        lines.append(Line(NOTE, f"handles {one.exception}" + (f", raised at {one.raised_at}" if one.raised_at else "")))
    if one.problem:
        lines.append(Line(NOTE, one.problem))
    threads = _told(one)
    for number, thread in enumerate(threads):
        if number:
            lines.append(Line(THREAD, f"thread {thread.name}"))
        if thread.holds_gil:
            lines.append(Line(NOTE, "it holds the interpreter lock"))
        # Where there is no stack, the problem says why.
        lines += _stack(thread) if thread.frames or not one.problem else []
    silent = len(one.threads) - len(threads) + one.threads_left_out
    if one.threads and silent > 0:
        lines.append(Line(FOLDED, f"and {plural(silent, 'more thread')}, in libraries alone"))
    return lines


def _facts(inspections: Sequence[wire.Inspection]) -> Iterable[str]:
    one = inspections[0]
    if len(inspections) == 1:
        yield f"pid {one.pid}"
    steps = [each.step for each in inspections]
    if max(steps):
        least, most = min(steps), max(steps)
        yield f"step {most:,}" if least == most else f"steps {least:,} to {most:,}"
    for field in ("state", "activity"):
        values = {getattr(each, field) for each in inspections} - {"", "running"}
        if len(values) == 1:
            yield values.pop()
    statuses = {each.status for each in inspections} - {""}
    if len(statuses) == 1:
        yield f"process {statuses.pop()}"
    shares = [round(each.cpu_percent) for each in inspections if each.cpu_percent is not None]
    if shares:
        least, most = min(shares), max(shares)
        yield f"{most}% CPU" if least == most else f"{least} to {most}% CPU"
    if len(inspections) == 1 and one.traced_by is not None:
        yield f"traced by process {one.traced_by}"
    if one.swapped_bytes:
        yield f"{size(one.swapped_bytes)} swapped out"
    if one.by not in ("agent", ""):
        yield "seen from outside" + (f" by {one.by}" if one.by != "system" else "")


def _calls(inspections: Sequence[wire.Inspection], awaited: Collection[str]) -> Iterable[str]:
    """Yield what is known of the collectives of ranks at one place; `awaited`: groups in which any rank stands."""
    one = inspections[0]
    calls = [call for each in inspections if (call := _awaited_call(each)) is not None]
    if calls:
        call = calls[0]
        place = f"{call.op}{_amount(call.bytes)}, {_numbered(call.number)}{_of_groups(each.group for each in calls)}"
        begun = "in" if call.blocking else "open:" if call.sure else "perhaps open, its end is not reported:"
        more = f", and {plural(len(one.open) - 1, 'more call')} open" if len(one.open) > 1 else ""
        yield f"{begun} {place}, for {_span([each.open_ns for each in calls])}{more}"
    elif one.observed and one.by == "agent":
        yield f"not in a collective{_made_calls(inspections, awaited)}"
    elif one.by == "agent":
        yield "not every collective is seen here: another one may be open"


def _made_calls(inspections: Sequence[wire.Inspection], awaited: Collection[str]) -> str:
    """Return how many calls the ranks have made of the group in which others stand, else of the busiest."""
    one = inspections[0]
    if not one.groups:
        return "; no calls yet"
    group = max(one.groups, key=lambda each: (each.group in awaited, each.calls)).group
    counts = [each.calls for inspection in inspections for each in inspection.groups if each.group == group]
    least, most = min(counts), max(counts)
    made = plural(most, "call") if least == most else f"{least:,} to {most:,} calls"
    past = next(each.recent for each in one.groups if each.group == group)
    last = f", the last {past[-1].op}{_amount(past[-1].bytes)}" if past and least == most else ""
    return f"; {made} in group {group}{last}"


def _numbered(number: int) -> str:
    # Sends and receives have no number that ranks have in common.
    return f"call {number:,} of " if number else "in "


def _of_groups(names: Iterable[str]) -> str:
    groups = list(dict.fromkeys(names))
    if len(groups) == 1:
        return f"group {groups[0]}"
    return f"groups {', '.join(groups[:_GROUPS])}{' …' if len(groups) > _GROUPS else ''} ({len(groups)})"


def _amount(number: int) -> str:
    return f" {size(number)}" if number else ""


def _span(spans: Sequence[int]) -> str:
    least, most = (units.age(each / 1e9).strip() for each in (min(spans), max(spans)))
    return most if least == most else f"{least} to {most}"


# Stacks


def _stack(thread: wire.Thread) -> list[Line]:
    """Return the lines of a stack, the innermost call first, with the libraries' folded."""
    frames = thread.frames
    if not frames:
        return [Line(NOTE, "its stack could not be read")]
    if not thread.left_out:
        return _folded(frames, innermost=True)
    half = len(frames) // 2
    cut = Line(FOLDED, f"… {plural(thread.left_out, 'frame')} left out")
    return [*_folded(frames[:half], innermost=True), cut, *_folded(frames[half:], innermost=False)]


def _folded(frames: Sequence[wire.Frame], *, innermost: bool) -> list[Line]:
    lines: list[Line] = []
    stands = innermost
    for library, run in groupby(frames, key=lambda frame: frame.library):
        together = list(run)
        if library:
            lines += _of_libraries(together, told=innermost and not lines)
            continue
        for _, same in groupby(together, key=_spot):
            repeated = list(same)
            times = f"  ×{len(repeated):,}" if len(repeated) > 1 else ""
            lines.append(Line(HERE if stands else USER, f"{located(repeated[0])}{times}", repeated[0].source))
            stands = False
    return lines


def _of_libraries(frames: Sequence[wire.Frame], *, told: bool) -> list[Line]:
    """Return frames of libraries in one line; the innermost one has its own where it is to be `told`, or is alone."""
    lines = []
    left = list(frames)
    if told or len(left) == 1:
        # Our own wrapper says nothing of what the rank does.
        chosen = next((frame for frame in left if package(frame.file).partition(".")[0] != _OURS), left[0])
        left.remove(chosen)
        lines.append(Line(LIBRARY, located(chosen)))
    if left:
        names = list(dict.fromkeys(package(frame.file) for frame in left))
        of = names[0] if len(names) == 1 else f"{', '.join(names[:2])}{' and others' if len(names) > 2 else ''}"
        lines.append(Line(FOLDED, f"… {plural(len(left), 'frame')} of {of}"))
    return lines


def located(frame: wire.Frame) -> str:
    """Return `train.py:31 main`; a file of a library without the folders before its package."""
    file = "/".join(_parts(frame.file)) if frame.library else frame.file
    return f"{file or '?'}{f':{frame.line}' if frame.line else ''} {frame.function}"


def package(file: str) -> str:
    """Return the package of a file of a library, with one part below it: `torch.nn`, `threading`; of C its name."""
    *folders, module = _parts(file) or [""]
    if _NATIVE in module:
        return module.partition(_NATIVE)[0]
    return ".".join(folders[:2]) or module.removesuffix(".py") or "?"


def _parts(file: str) -> list[str]:
    """Return the path of a library's file from its package on; of one of machine code, its name."""
    # What was cut off from the front of a long path is an ellipsis.
    parts = [part for part in file.split("/") if part not in ("", "…")]
    if parts and _NATIVE in parts[-1]:
        return parts[-1:]
    for index in range(len(parts) - 2, -1, -1):
        if parts[index] in _ROOTS or parts[index].startswith("python3."):
            return parts[index + 1 :]
    return parts if not file.startswith("/") else parts[-2:]
