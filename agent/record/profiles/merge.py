"""One Chrome trace of all ranks: a process for each rank, with its steps, phases, threads and GPU streams as tracks.

Perfetto shows of a track only events that are nested or follow each other; of others it drops some. An event that does
neither goes to a track of its own beside it.
"""

from __future__ import annotations

import gzip
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from ddptop.agent.record.profiles import trace
from ddptop.agent.record.profiles.parts import Profile, RankPart
from ddptop.agent.record.profiles.trace import Event, Stretch, Trace, Track
from ddptop.agent.text import clean_line

_FIRST_PID: Final = 1000
"""Number of the process of rank 0: beyond 0, which Perfetto takes for the idle process."""
_FIRST_TRACK: Final = 1_000_000
"""Number of the first track. The format wants one for each track, and Perfetto not that of another process."""
_BEFORE_NS: Final = 60_000_000_000
"""The first step is so far behind the zero of the trace, so that no time is below zero."""
_LEVEL: Final = 4
"""Of gzip: twice as fast as the usual one, and 5 % larger."""


def write(path: Path, folder: Path, profile: Profile, take: Callable[[Trace], None]) -> None:
    """Write the trace of all ranks into a file, and give the trace of each rank to `take`.

    Raises:
        Complaint: the trace of a rank cannot be used.
        OSError: a file cannot be read or written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as raw, gzip.GzipFile("", "wb", _LEVEL, raw, 0) as file:
        tracks, arrows = itertools.count(_FIRST_TRACK), itertools.count(1)
        base: int | None = None
        for index, part in enumerate(sorted(profile.ranks, key=lambda part: part.rank)):
            # One at a time: some take a gigabyte.
            read = trace.read(folder, part)
            if base is None:
                base = read.steps[0].begin - _BEFORE_NS
                head = {"displayTimeUnit": "ms", "baseTimeNanoseconds": base, "ddptop": _about(profile)}
                file.write(msgspec.json.encode(head)[:-1] + b',"traceEvents":[\n')
            else:
                file.write(b",\n")
            _write(file, _Rank(read, base, tracks, arrows).events(index))
            take(read)
        file.write(b"\n]}\n")


def _about(profile: Profile) -> dict[str, object]:
    return {"run": profile.run, "steps": profile.steps, "at": profile.at}


def _write(file: gzip.GzipFile, events: Iterable[object]) -> None:
    encoder = msgspec.json.Encoder()
    whole = iter(events)
    first = True
    while lines := [encoder.encode(event) for event in itertools.islice(whole, 10_000)]:
        file.write((b"" if first else b",\n") + b",\n".join(lines))
        first = False


def title(part: RankPart) -> str:
    """Return the name of a rank's process: `rank 2 · node1 ± 0.2 ms`."""
    error = f" ± {part.error_ns / 1e6:.2g} ms" if part.error_ns else ""
    return clean_line(f"rank {part.rank} · {part.host}") + error


class _Rank:
    """The events of one rank, as the trace of all has them."""

    def __init__(self, read: Trace, base: int, tracks: Iterator[int], arrows: Iterator[int]) -> None:
        self._trace = read
        self._base = base
        self._tracks = tracks
        self._arrows = arrows
        self._pid = _FIRST_PID + read.part.rank
        self._places = itertools.count()
        """Places of the tracks below each other."""

    def events(self, index: int) -> Iterator[object]:
        yield _named("process_name", self._pid, 0, name=title(self._trace.part))
        yield _named("process_sort_index", self._pid, 0, sort_index=index)
        yield from self._own("steps", "step", self._steps())
        yield from self._own("phases", "phase", self._phases())
        # The number of the track of each event, by the track and moment that it had: arrows follow them.
        moved: dict[tuple[Track, int], int] = {}
        whole: dict[Track, int] = {}
        for track in sorted(self._trace.tracks, key=self._order):
            for lane, stretches in enumerate(lanes(self._trace.tracks[track])):
                tid, names = self._open(self._name(track) + (f" ({lane + 1})" if lane else ""))
                yield from names
                whole.setdefault(track, tid)
                for stretch in stretches:
                    moved[track, stretch.begin] = tid
                    yield self._placed(stretch.event, tid, stretch.begin, stretch.end)
        arrows = self._paired()
        for begin, event in self._trace.others:
            track = event.pid, event.tid
            if track not in whole:
                continue
            if event.ph != "i":
                key = event.cat, event.id
                if key not in arrows:
                    continue
                event.id = arrows[key]
            yield self._placed(event, moved.get((track, begin), whole[track]), begin)

    def _own(self, name: str, kind: str, stretches: Iterable[tuple[int, int, str]]) -> Iterator[object]:
        made = (Stretch(begin, end, Event("X", text, f"ddptop {kind}")) for begin, end, text in stretches)
        for lane in lanes(sorted(made, key=lambda each: (each.begin, -each.end))):
            tid, names = self._open(name)
            yield from names
            for stretch in lane:
                yield self._placed(stretch.event, tid, stretch.begin, stretch.end)

    def _steps(self) -> Iterator[tuple[int, int, str]]:
        for step in self._trace.steps:
            yield step.begin, step.end, f"step {step.number}"

    def _phases(self) -> Iterator[tuple[int, int, str]]:
        for begin, end, name in self._trace.phases():
            yield begin, end, clean_line(name)

    def _order(self, track: Track) -> tuple[bool, bool, str, str]:
        """The training thread comes first, then the other threads, then the GPUs."""
        process, thread = track
        return process != self._trace.training[0], track != self._trace.training, f"{process:>20}", f"{thread:>20}"

    def _name(self, track: Track) -> str:
        process, thread = track
        names = self._trace.names
        name = clean_line(names.get((track, "thread_name"), f"thread {thread}"))
        if process == self._trace.training[0]:
            return name
        # Kineto labels a device as thread 0 of its process.
        return f"{clean_line(names.get(((process, 0), 'process_labels'), f'device {process}'))} · {name}"

    def _open(self, name: str) -> tuple[int, list[object]]:
        """Return the number of another track, below those that are there, and the events that name it."""
        tid = next(self._tracks)
        return tid, [
            _named("thread_name", self._pid, tid, name=name),
            _named("thread_sort_index", self._pid, tid, sort_index=next(self._places)),
        ]

    def _placed(self, event: Event, tid: int, begin: int, end: int | None = None) -> Event:
        event.pid, event.tid, event.ts = self._pid, tid, (begin - self._base) / 1000
        if end is not None:
            event.dur = (end - begin) / 1000
        return event

    def _paired(self) -> dict[tuple[str, int | str], int]:
        """Return a number for each arrow that has both its ends; the ranks' own ones are the same in all ranks."""
        ends = Counter((event.cat, event.id, event.ph) for _, event in self._trace.others if event.ph != "i")
        found = {}
        for cat, number in dict.fromkeys((cat, number) for cat, number, _ in ends):
            if ends[cat, number, "s"] == ends[cat, number, "f"] == 1:
                found[cat, number] = next(self._arrows)
        return found


def lanes(stretches: Iterable[Stretch]) -> list[list[Stretch]]:
    """Return the events of a track, in order, as tracks whose events are nested or follow each other."""
    found: list[tuple[list[Stretch], list[int]]] = []
    for stretch in stretches:
        lane, ends = next((each for each in found if _has_room(each[1], stretch)), ([], []))
        if not lane:
            found.append((lane, ends))
        lane.append(stretch)
        ends.append(stretch.end)
    return [lane for lane, _ in found]


def _has_room(ends: list[int], stretch: Stretch) -> bool:
    """Say whether an event can follow in a track, of which these are the ends of the events that run, and may have."""
    while ends and ends[-1] <= stretch.begin:
        ends.pop()
    return not ends or stretch.end <= ends[-1]


def _named(kind: str, pid: int, tid: int, **args: Any) -> dict[str, object]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}
