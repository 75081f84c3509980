"""A look at processes of ranks from outside, where an agent cannot answer: stopped, spinning in C, or gone.

Only a process that is proved to be the rank is looked at, by its pid and its start, before and afterwards.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.inspection.dumps import Dump, Thread, dumps
from ddptop.agent.run import identity
from ddptop.agent.run.identity import Process, Row
from ddptop.agent.run.rundir import Member
from ddptop.agent.run.script.sources import Sources, read_lines
from ddptop.agent.run.script.stacks import OWN_THREADS, bounded, function_name
from ddptop.agent.text import clean
from ddptop.agent.wire.incoming import cleaned

WATCH_S: Final = 0.2
"""Seconds over which the CPU of a process is measured; the system counts it in hundredths of a second."""
_GONE: Final = "its process is gone"
_STOPPED: Final = "it is stopped: the frames of C and C++ cannot be read"
_PROC: Final = Path("/proc")
_IMPORTS_S: Final = 1.0
"""Seconds after the start of a process within which a file may still change before it is imported."""


class _Reading(NamedTuple):
    """A process as the system describes it."""

    row: Row
    at: float
    page_reads: int | None = None
    swapped: int | None = None
    tracer: int | None = None
    memory: int | None = None
    moved: int | None = None


def look(
    members: Mapping[int, Member], *, stacks: bool, native: bool, until: float, script: str = ""
) -> dict[int, wire.Inspection]:
    """Return what can be seen of ranks from outside, by rank; it takes a fraction of a second.

    Args:
        members: the ranks' records, by rank.
        stacks: also their stacks.
        native: with the frames of C and C++; each process stands still meanwhile, for about a second.
        until: the time, by `time.monotonic`, at which stacks are given up.
        script: absolute path of the run's script, empty where it is not known.
    """
    began = {rank: reading for rank, member in members.items() if (reading := _read(member.process)) is not None}
    dumped: dict[int, Dump] = {}
    if stacks:
        # One that is stopped cannot be stopped again, which py-spy does for native frames.
        still = {rank for rank, reading in began.items() if reading.row.status in identity.STOPPED}
        moving = began.keys() - still
        for ranks, with_native in ((moving, native), (still, False)):
            pids = {rank: began[rank].row.process.pid for rank in sorted(ranks)}
            dumped |= dumps(pids, native=with_native, until=until) if pids else {}
        if native:
            dumped |= {rank: dumped[rank]._replace(problem=dumped[rank].problem or _STOPPED) for rank in still}
    first = min((reading.at for reading in began.values()), default=0.0)
    time.sleep(max(0.0, min(first + WATCH_S, until) - time.monotonic()))
    found = {}
    for rank, member in members.items():
        ended = _read(member.process) if rank in began else None
        if ended is None:
            found[rank] = _absent(member)
        else:
            found[rank] = cleaned(_told(member, began[rank], ended, dumped.get(rank), script))
    return found


def _absent(member: Member) -> wire.Inspection:
    elsewhere = identity.is_elsewhere(member.process)
    problem = f"it {identity.ELSEWHERE}" if elsewhere else _GONE
    return _bare(member, problem)


def _bare(member: Member, problem: str) -> wire.Inspection:
    return wire.Inspection(
        member.rank, time.time_ns(), "system", member.process.pid, problem=problem, generation=member.generation
    )


def _told(member: Member, began: _Reading, ended: _Reading, dump: Dump | None, script: str) -> wire.Inspection:
    passed = ended.at - began.at
    spent = max(0.0, ended.row.cpu_s - began.row.cpu_s)
    reads = None
    if began.page_reads is not None and ended.page_reads is not None and passed > 0:
        reads = max(0, ended.page_reads - began.page_reads) / passed
    found = msgspec.structs.replace(
        _bare(member, "" if dump is None else dump.problem),
        status=ended.row.status,
        cpu_percent=100 * spent / passed if passed > 0 else None,
        traced_by=began.tracer,
        swapped_bytes=ended.swapped,
        page_reads_per_s=reads,
        memory_bytes=ended.memory,
        moved_bytes=ended.moved,
    )
    if dump is None or not dump.threads:
        return found
    threads, left_out = bounded(_threads(member.process, dump.threads, script))
    return msgspec.structs.replace(found, by="py-spy", threads=threads, threads_left_out=left_out)


def _threads(process: Process, told: Iterable[Thread], script: str) -> list[wire.Thread]:
    sources = Sources(os.path.dirname(script), identity.link(process.pid, "cwd"))
    shown = [each for each in told if not (each.thread_name or "").startswith(OWN_THREADS)]
    shown.sort(key=lambda each: each.os_thread_id != process.pid)
    texts = _texts(sources, shown[: wire.MOST_THREADS], identity.began_at(process) + _IMPORTS_S)
    return [
        wire.Thread(
            name=each.thread_name or f"thread {each.os_thread_id}",
            frames=tuple(
                wire.Frame(
                    function=clean(function_name(frame.name[:4096]), 100),
                    file=sources.name(frame.filename[:4096]),
                    line=max(0, min(frame.line, 1 << 31)),
                    source=texts.get((frame.filename, frame.line), ""),
                    library=not frame.filename.endswith(".py") or sources.is_library(frame.filename),
                )
                for frame in each.frames
            ),
            main=each.os_thread_id == process.pid,
            native_id=each.os_thread_id if 0 <= (each.os_thread_id or -1) < 1 << 31 else None,
            holds_gil=each.owns_gil,
        )
        for each in shown
    ]


def _texts(sources: Sources, threads: Iterable[Thread], before: float) -> dict[tuple[str, int], str]:
    """Return the source of the lines of the user's code, from files of its own folders alone."""
    wanted: dict[str, set[int]] = {}
    for thread in threads:
        for frame in thread.frames:
            if frame.filename.endswith(".py") and not sources.is_library(frame.filename):
                wanted.setdefault(frame.filename, set()).add(frame.line)
    return {
        (file, number): text
        for file, lines in wanted.items()
        # The script gives its files any name, that of a secret too.
        if sources.is_own(file)
        for number, text in read_lines(sources.path(file), lines, before=before).items()
    }


def _read(process: Process) -> _Reading | None:
    row = identity.look(process)
    if row is None:
        return None
    found = _Reading(row, time.monotonic())
    try:
        fields = (_PROC / str(process.pid) / "stat").read_bytes().rpartition(b")")[2].split()
        lines = (_PROC / str(process.pid) / "status").read_text(errors="replace").splitlines()
        told = dict(line.split(":", 1) for line in lines if ":" in line)
        swap, memory = (told.get(name, "").split() for name in ("VmSwap", "VmRSS"))
        # From proc(5): faults that read from a disk are the tenth field after the name.
        found = found._replace(
            page_reads=int(fields[9]),
            tracer=int(told.get("TracerPid", "0")) or None,
            swapped=int(swap[0]) * 1024 if swap else None,
            memory=int(memory[0]) * 1024 if memory else None,
        )
        # This one is for the owner of the process alone.
        transfers = (_PROC / str(process.pid) / "io").read_text().split()
        return found._replace(moved=int(transfers[1]) + int(transfers[3]))
    except (OSError, ValueError, IndexError):
        return found
