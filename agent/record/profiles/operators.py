"""The own time of each operator in the steps of a rank: without the operators that it calls, and without waits.

Waits are no work: time in the phase `wait` is nobody's, nor is that in a collective (c10d, gloo, nccl) or in a call
that waits for the GPU, whatever these call. What a training thread does between its operators is Python, and counted
by phase.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from ddptop.agent.record.profiles.parts import WAIT
from ddptop.agent.record.profiles.trace import Event, Stretch, Trace

_ON_HOST: Final = {"cpu_op", "cuda_runtime", "cuda_driver"}
_ON_DEVICE: Final = {"kernel", "gpu_memcpy", "gpu_memset"}
_COLLECTIVE: Final = re.compile(r"(?<![a-z])(?:c10d|gloo|r?nccl|record_param_comms)", re.IGNORECASE)
_SYNCHRONIZES: Final = re.compile(r"(?:cuda|hip|cu)\w*Synchronize|cudaEventQuery")
BETWEEN: Final = "Python outside of operators"
_PLACES: Final = {
    phase: f"{BETWEEN}, in {place}"
    for phase, place in {
        "data": "data loading", "copy": "copies to the device", "forward": "forward", "backward": "backward",
        "optimizer": "the optimizer",
    }.items()
}  # fmt: skip


class Operator:
    """The own time of one operator in the steps of a rank."""

    def __init__(self) -> None:
        self.by_step: Counter[int] = Counter()
        """Own nanoseconds by the place of the step among those of the profile."""
        self.calls = 0
        self.shapes: Counter[str] = Counter()
        """Own nanoseconds by the shapes of the arguments."""


class _Segment(NamedTuple):
    begin: int
    end: int
    step: int
    """Its place among the steps."""
    phase: str
    """Empty where the rank says none."""


def of(trace: Trace) -> dict[str, Operator]:
    """Return the operators of a rank, by name, over all its steps."""
    found: dict[str, Operator] = {}
    segments = _segments(trace)
    begins = [step.begin for step in trace.steps]
    ends = [*begins[1:], trace.steps[-1].end]
    whole = [_Segment(*each, place, "") for place, each in enumerate(zip(begins, ends, strict=True))]
    for track, stretches in trace.tracks.items():
        if track[0] == trace.training[0]:
            operators = [each for each in stretches if each.event.cat in _ON_HOST]
            _Thread(segments, found, between=track == trace.training).add(operators)
        else:
            # A GPU goes on with the work of a step while the training thread waits.
            _Thread(whole, found).add(each for each in stretches if each.event.cat in _ON_DEVICE)
    if trace.training not in trace.tracks:
        _Thread(segments, found, between=True).add([])
    return found


def _segments(trace: Trace) -> list[_Segment]:
    """Return the phases of all steps, and what lies between them, without waits."""
    found = []
    phases = list(trace.phases())
    for place, step in enumerate(trace.steps):
        at = step.begin
        for begin, end, phase in phases:
            begin = max(at, begin)
            if begin < end <= step.end:
                found += [_Segment(at, begin, place, "")] * (at < begin)
                found += [_Segment(begin, end, place, phase)] * (phase != WAIT)
                at = end
        found += [_Segment(at, step.end, place, "")] * (at < step.end)
    return found


class _Thread:
    """The operators of one thread or stream, followed in the order of time."""

    def __init__(self, segments: list[_Segment], found: dict[str, Operator], *, between: bool = False) -> None:
        self._segments = segments
        self._found = found
        self._between = between
        """Count what is outside of operators, too."""
        self._at = 0
        """Index of the first segment that is not over."""
        self._now = segments[0].begin if segments else 0
        self._open: list[tuple[int, str | None, str]] = []
        """End, name (None: not counted) and shapes of the operators that run, each inside of the one before."""

    def add(self, stretches: Iterable[Stretch]) -> None:
        for begin, end, event in stretches:
            self._close(begin)
            self._spend(begin)
            name: str | None = event.name
            if self._open:
                # Kineto's ends are exact; where one lies beyond that of the caller, the caller's counts.
                end = min(end, self._open[-1][0])
            if (self._open and self._open[-1][1] is None) or _waits(event):
                name = None
            elif self._is_inside(begin):
                self._operator(event.name).calls += 1
            self._open.append((end, name, _shapes(event)))
        self._close(None)
        if self._between and self._segments:
            self._spend(self._segments[-1].end)

    def _close(self, until: int | None) -> None:
        while self._open and (until is None or self._open[-1][0] <= until):
            self._spend(self._open[-1][0])
            self._open.pop()

    def _spend(self, until: int) -> None:
        """Give the time until then to the operator that runs."""
        begin, self._now = self._now, max(self._now, until)
        if not self._open and not self._between:
            return
        index = self._at
        while index < len(self._segments) and (segment := self._segments[index]).begin < until:
            spent = min(until, segment.end) - max(begin, segment.begin)
            if spent > 0:
                self._give(spent, segment)
            index += 1
        while self._at < len(self._segments) and self._segments[self._at].end <= until:
            self._at += 1

    def _give(self, spent: int, segment: _Segment) -> None:
        if not self._open:
            self._operator(_PLACES.get(segment.phase, BETWEEN)).by_step[segment.step] += spent
            return
        _, name, shapes = self._open[-1]
        if name is not None:
            operator = self._operator(name)
            operator.by_step[segment.step] += spent
            if shapes:
                operator.shapes[shapes] += spent

    def _is_inside(self, moment: int) -> bool:
        index = self._at
        while index < len(self._segments) and self._segments[index].end <= moment:
            index += 1
        return index < len(self._segments) and self._segments[index].begin <= moment

    def _operator(self, name: str) -> Operator:
        return self._found.setdefault(name, Operator())


def _waits(event: Event) -> bool:
    return _COLLECTIVE.search(event.name) is not None or _SYNCHRONIZES.match(event.name) is not None


class _Arguments(msgspec.Struct):
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")


def _shapes(event: Event) -> str:
    """Return the shapes of an operator's arguments, `[64, 512], [512]`; empty where it has none or they are unknown."""
    if not event.args or event.cat != "cpu_op":
        return ""
    try:
        dims = msgspec.json.decode(event.args, type=_Arguments).dims
    except msgspec.DecodeError:
        return ""
    # Without spaces after a comma in newer versions; a number, and so a plain list of numbers, is no tensor.
    return ", ".join(
        f"[{', '.join(found.split(','))}]" for found in _DIMS.findall(bytes(dims).replace(b" ", b"").decode())
    )


_DIMS: Final = re.compile(r"\[(\d[\d,]*)\]")
