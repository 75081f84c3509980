"""The line behind a slow rank: the looks at its training thread against those at an ordinary rank. Pure.

The difference is made line by line, each with all that it calls.  Named is the deepest function of the user's own that
has most of it, and the line there; a library's only where the user's own code is on the stack of everything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ddptop.agent.observer.judge.intervals import Reason
from ddptop.agent.text import in_ms
from ddptop.agent.wire import Frame, Looks, Verdict

MOST: Final = 0.6
"""Part of the difference that a function has which is named for it."""
SEEN: Final = 0.5
"""Part of the verdict's cost that the looks must show: otherwise it is over, or not in Python."""
ALWAYS: Final = 0.9
"""Part of a phase, and of all else, from which on a line says nothing: the loop of the training, or a library's."""
ALIKE: Final = 1.3
"""A line stands out where it has become so many times slower than all else has, whatever the phase."""
HARDLY: Final = 0.05
"""All else has not become slower where that is at most this part of the line's own difference."""
WAIT: Final = "wait"
_WAITS_FOR_WORKERS: Final = "_try_get_data"
"""Torch's function in which a loader waits for its workers."""

_Key = tuple[object, ...]
"""File and function of a frame, or these and its line."""


@dataclass(frozen=True, slots=True)
class Line(Reason):
    """The line that costs a rank its time, `train.py:88 load_image`; without text where no line stands out."""

    share: float = 0.0
    """Part of the difference to an ordinary rank that the line has."""
    within: str = ""
    """Where no line stands out, the only phase that is slower; empty where all of it is."""

    def remark(self, cost_ms: float) -> str:
        """Return the words for the end of a verdict of this cost."""
        if not self.text:
            slower = f"only its {self.within} is slower: P says in what" if self.within else "all of it is slower"
            return f"no line of its code stands out: {slower}"
        return f"{self.text} ({in_ms(self.share * cost_ms).removesuffix(' ms')} of {in_ms(cost_ms)})"

    def added_to(self, finding: Verdict) -> Verdict:
        """Return the finding with its line, and the part of its cost that this has at the moment."""
        cost_ms = finding.cost_ms or 0.0
        text = f"{finding.text} · {self.remark(cost_ms)}"
        if not self.text:
            return msgspec.structs.replace(finding, text=text)
        line_ms, share = round(self.share * cost_ms, 3), round(self.share, 4)
        return msgspec.structs.replace(finding, text=text, line=self.text, line_ms=line_ms, line_share=share)


def line_of(culprit: Sequence[Looks], peer: Sequence[Looks], phase: str | None, cost_ms: float) -> Line | None:
    """Return the line by which a rank is slower than another.

    Args:
        culprit: the looks at its training thread, and those at its data workers where it has any.
        peer: those of an ordinary rank; empty where all ranks are alike, and the line is one that all wait for.
        phase: the phase that is blamed; None: none alone.
        cost_ms: of the verdict, in ms a step.

    Returns:
        the line, or one without text where no line stands out; None where the looks do not show what was judged.
    """
    if not culprit or not culprit[0].steps or (peer and not peer[0].steps):
        return None
    own = _Spent(culprit[0], phase)
    other = _Spent(peer[0], phase) if peer else None
    if phase is not None and own.above(other) < SEEN * cost_ms:
        own, other, phase = _Spent(culprit[0], None), _Spent(peer[0], None) if peer else None, None
    excess = own.above(other)
    if excess < SEEN * cost_ms:
        return None
    found = _largest(own, other, excess, own.always & other.always if other is not None else own.always)
    if found is None:
        is_alone = other is not None and phase != "other" and _is_alone(own, other)
        return Line("", within=phase or "" if is_alone else "")
    if not _waits(own, other, excess):
        return _named(*found)
    inside = _of_workers(culprit[1:], peer[1:])
    if inside is None:
        return _named(*found, ", which waits for data workers")
    return _named(inside[0], found[1] * inside[1], ", in a data worker")


def _named(frame: Frame, share: float, where: str = "") -> Line:
    if not frame.file:
        return Line(f"backward of {frame.function}", share)
    function = frame.function.rpartition(".")[2] if frame.library else frame.function
    return Line(f"{frame.file}:{frame.line} {function}{where}", share)


class _Spent:
    """The ms a step that a rank spends in each function and line, with all that they call."""

    def __init__(self, looks: Looks, phase: str | None) -> None:
        self.by_line: defaultdict[Frame, float] = defaultdict(float)
        """Without waiting for others, and of one phase where one is blamed; so are the next ones."""
        self.by_function: defaultdict[_Key, float] = defaultdict(float)
        self.depth: dict[_Key, int] = {}
        """By function, its largest distance from the outermost frame."""
        self.total = 0.0
        self.whole = 0.0
        """The same of all phases."""
        self.always: frozenset[_Key] = frozenset()
        """The lines that are on the stack of nearly everything, whatever the phase."""
        inside: defaultdict[_Key, float] = defaultdict(float)
        outside: defaultdict[_Key, float] = defaultdict(float)
        apart = 0.0
        for stack in looks.stacks:
            ms = stack.ns / 1e6 / max(1, looks.steps)
            frames = [looks.places[number] for number in stack.frames if number < len(looks.places)]
            is_apart = stack.phase == WAIT or (phase is not None and stack.phase != phase)
            if stack.phase != WAIT:
                self.whole += ms
            for key in {_line(frame) for frame in frames}:
                (outside if is_apart else inside)[key] += ms
            if is_apart:
                apart += ms
                continue
            self.total += ms
            for frame in set(frames):
                self.by_line[frame] += ms
            for key in {_function(frame) for frame in frames}:
                self.by_function[key] += ms
            for depth, frame in enumerate(frames):
                self.depth[_function(frame)] = max(depth, self.depth.get(_function(frame), 0))
        self.always = frozenset(
            key
            for key in inside.keys() | outside.keys()
            # Where nothing was seen outside of the phase, nothing is known of it.
            if (apart or phase is None) and inside[key] >= ALWAYS * self.total and outside[key] >= ALWAYS * apart
        )

    def above(self, other: _Spent | None) -> float:
        """Return the ms a step that it spends more than another."""
        return self.total - (other.total if other is not None else 0.0)


def _largest(
    own: _Spent, other: _Spent | None, excess: float, always: Container[_Key] = ()
) -> tuple[Frame, float] | None:
    """Return the line with most of the difference, and its part of that; None where it is spread over all."""
    lines = {frame: ms - (other.by_line.get(frame, 0.0) if other else 0.0) for frame, ms in own.by_line.items()}
    functions = {key: ms - (other.by_function.get(key, 0.0) if other else 0.0) for key, ms in own.by_function.items()}
    for is_library in (False, True):
        inside: defaultdict[_Key, list[Frame]] = defaultdict(list)
        for frame in lines:
            if frame.library is is_library:
                inside[_function(frame)].append(frame)
        likely = [key for key in inside if functions[key] >= MOST * excess]
        for key in sorted(likely, key=lambda each: own.depth[each], reverse=True):
            frame = max(inside[key], key=lambda each: lines[each])
            if lines[frame] < excess * MOST / 2 or _line(frame) in always:
                continue
            return (frame, min(1.0, lines[frame] / excess)) if _stands_out(own, other, frame) else None
    return None


def _is_alone(own: _Spent, other: _Spent) -> bool:
    """Say whether nothing but the phase has become slower: all else by less than half of what the phase has."""
    rest, usual = own.whole - own.total, other.whole - other.total
    return (rest - usual) * other.total < (own.total - other.total) * usual / 2


def _stands_out(own: _Spent, other: _Spent | None, frame: Frame) -> bool:
    """Say whether a line has become slower by more than all else has."""
    if other is None:
        return True
    here, there = own.by_line[frame], other.by_line.get(frame, 0.0)
    rest, usual = own.whole - here, other.whole - there
    return rest - usual <= HARDLY * (here - there) or here * usual >= ALIKE * rest * there


def _waits(own: _Spent, other: _Spent | None, excess: float) -> bool:
    """Say whether most of the difference is a wait for data workers."""
    waited = sum(
        ms - (other.by_function.get(key, 0.0) if other else 0.0)
        for key, ms in own.by_function.items()
        if str(key[1]).rpartition(".")[2] == _WAITS_FOR_WORKERS
    )
    return waited >= MOST * excess


def _of_workers(culprit: Sequence[Looks], peer: Sequence[Looks]) -> tuple[Frame, float] | None:
    """Return the line by which making a batch takes longer, and its part of that."""
    if not culprit or not culprit[0].steps:
        return None
    own = _Spent(culprit[0], None)
    other = _Spent(peer[0], None) if peer and peer[0].steps else None
    excess = own.above(other)
    if excess <= 0:
        return None
    return _largest(own, other, excess)


def _function(frame: Frame) -> _Key:
    return frame.file, frame.function


def _line(frame: Frame) -> _Key:
    return frame.file, frame.function, frame.line
