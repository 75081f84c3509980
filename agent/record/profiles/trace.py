"""The trace of one rank, as torch.profiler exports it for Chrome: decoded, and on the clock of the first host.

Kineto writes times in microseconds with three decimals since `baseTimeNanoseconds`, the begin of a quarter of a year,
which is missing where they count from the epoch.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ddptop.agent.record.profiles.parts import Nanoseconds, RankPart
from ddptop.agent.run.files import private
from ddptop.agent.text import Complaint, size

LARGEST: Final = 512 << 20
"""Bytes of the trace of one rank, unpacked: those of some million events."""
_STEP: Final = re.compile(r"ddptop step (\d{1,15})")
_FURTHEST_US: Final = 4e15
"""A time in microseconds at most, in the year 2096."""


class Event(msgspec.Struct, omit_defaults=True):
    """An event of the Trace Event Format; the names are those of the format.

    Its document: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
    """

    ph: str
    """Kind: X with a duration, i a moment, s and f the ends of an arrow, M a name."""
    name: str = ""
    cat: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: float = -1.0
    dur: float = -1.0
    id: int | str = ""
    bp: str = ""
    s: str = ""
    args: msgspec.Raw = msgspec.Raw()


class Stretch(NamedTuple):
    """An event with a duration, in nanoseconds since the epoch by the clock of the first host."""

    begin: int
    end: int
    event: Event


class Step(NamedTuple):
    """A whole step, in such nanoseconds."""

    begin: int
    end: int
    number: int


Track = tuple["int | str", "int | str"]
"""Process and thread as the rank's trace has them; on a GPU they are the device and the stream."""


class Trace:
    """The events of one rank."""

    def __init__(self, part: RankPart, document: _Document) -> None:
        self.part = part
        self._base = document.baseTimeNanoseconds + part.offset_ns
        self.steps: list[Step] = []
        self.tracks: dict[Track, list[Stretch]] = {}
        """The events with a duration by track, each track in the order of time, what encloses before the enclosed."""
        self.others: list[tuple[int, Event]] = []
        """Moments, and the ends of arrows."""
        self.names: dict[tuple[Track, str], str] = {}
        """Names that Kineto gives to threads (`thread_name`) and labels of processes (`process_labels`)."""
        self.training: Track = ("", "")
        """The thread on which the steps were."""
        for event in document.traceEvents:
            self._take(event)
        if not self.steps:
            raise Complaint(f"{part.file}: no step of ddptop in it")
        self.steps.sort()
        for track in self.tracks.values():
            track.sort(key=_in_order)

    def phases(self) -> Iterator[tuple[int, int, str]]:
        """Yield the phases of all steps by the same clock, in order of time, each within its step.

        A step of the rank begins before that of the profiler, which is begun in the first: they end together.
        """
        phases = dict(self.part.phases)
        for step in self.steps:
            of_step = sorted(phases.get(step.number, ()))
            zero = min(step.begin, step.end - max((end for _, end, _ in of_step), default=0))
            for begin, end, name in of_step:
                begin, end = max(step.begin, zero + begin), min(step.end, zero + end)
                if begin < end:
                    yield begin, end, name

    def _take(self, event: Event) -> None:
        # Spans of the profiler itself are in processes with a name for a number.
        if not isinstance(event.pid, int):
            return
        track = event.pid, event.tid
        if event.ph == "M":
            self._name(track, event)
            return
        if not -_FURTHEST_US < event.ts < _FURTHEST_US or event.dur > _FURTHEST_US:
            raise Complaint(f"{self.part.file}: a time beyond all limits")
        begin = self._base + round(event.ts * 1000)
        if event.ph != "X":
            if event.ph in ("i", "s", "f"):
                self.others.append((begin, event))
            return
        # To whole nanoseconds, which Kineto writes: sums of them stay nested.
        end = begin + max(0, round(event.dur * 1000))
        step = _STEP.fullmatch(event.name)
        if step is not None and event.cat == "user_annotation":
            self.steps.append(Step(begin, end, int(step[1])))
            self.training = track
        else:
            self.tracks.setdefault(track, []).append(Stretch(begin, end, event))

    def _name(self, track: Track, event: Event) -> None:
        key = {"thread_name": "name", "process_labels": "labels"}.get(event.name)
        if key is not None:
            args = msgspec.json.decode(event.args) if event.args else None
            if not isinstance(args, dict) or not isinstance(name := args.get(key), str):
                raise Complaint(f"{self.part.file}: a {event.name} without a name")
            self.names[track, event.name] = name


class _Document(msgspec.Struct):
    traceEvents: list[Event]  # noqa: N815 - so the format calls them
    baseTimeNanoseconds: Nanoseconds = 0  # noqa: N815


def _in_order(stretch: Stretch) -> tuple[int, int]:
    return stretch.begin, -stretch.end


def read(folder: Path, part: RankPart) -> Trace:
    """Return the trace of a rank.

    Raises:
        Complaint: it is damaged, too large, or has no step.
        OSError: it cannot be read.
    """
    try:
        with private.open_plain(folder / part.file) as file, gzip.open(file) as unpacked:
            content = unpacked.read(LARGEST + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise Complaint(f"{part.file}: damaged ({problem})") from problem
    if len(content) > LARGEST:
        raise Complaint(f"{part.file}: more than {size(LARGEST)}; profile fewer steps")
    try:
        return Trace(part, msgspec.json.decode(content, type=_Document))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise Complaint(f"{part.file}: {problem}") from problem
