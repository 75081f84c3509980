"""The memory of some ranks as lines of text, the same on the dashboard and in plain output, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from ddptop.agent.client.diagnosis.kinds import left_out
from ddptop.agent.text import clean_line, plural, ranks_in_spans, size
from ddptop.agent.wire import DeviceMemory, MemoryUse, ObjectKind
from ddptop.agent.wire.diagnoses.kept import Censused, Kept, RankMemory
from ddptop.tui.drawing.units import COLUMNS, aligned, date
from ddptop.tui.model.diagnosis.report import ReportLine, block

_MOST_LINES: Final = 12
"""Kinds of the table at most."""
_NAME: Final = 42
"""Cells of the name of a kind at most."""
VIEWER: Final = "https://docs.pytorch.org/memory_viz"


def lines(kept: Kept[Censused], world: int) -> list[ReportLine]:
    """Return the whole of it; the table is of the rank that grew most."""
    census = kept.found
    first, ranks = census.ranks[0], [each.rank for each in census.ranks]
    head = f"memory {kept.number}: {ranks_in_spans(ranks)} over {_steps(kept)}, {date(census.at)}"
    found = [ReportLine("", head, "bold value"), ReportLine("", "")]
    found += [ReportLine("found", f"{named}: {cause}") for named, cause in census.sentences]
    remarks = [(each.rank, remark) for each in census.ranks for remark in each.use.remarks]
    found += [ReportLine("remark", f"rank {rank}: {remark}") for rank, remark in remarks]
    if missing := left_out(ranks, world):
        found.append(ReportLine("left out", missing))
    shown = f"ddptop memory {census.run} --list --json"
    return [
        *found,
        *block(_table(first)),
        ReportLine("", ""),
        *_totals(first.use),
        ReportLine("more", f"{plural(len(first.use.kinds), 'kind')} of each rank: {shown}"),
    ]


def _table(rank: RankMemory) -> list[str]:
    """Return the kinds of objects as a table, its head first; their origin stands below those that grew."""
    use = rank.use
    shown = use.kinds[:_MOST_LINES]
    head, *rows = aligned(
        [
            [f"what lives in rank {rank.rank}", "number", "bytes", "more", "more bytes"],
            *(
                [_name(each), f"{each.count:,}", size(each.bytes), _more(each.grown), _more_bytes(each.grown_bytes)]
                for each in shown
            ),
        ],
        left=1,
    )
    found = [head]
    for row, each in zip(rows, shown, strict=True):
        origin = textwrap.wrap(_origin(each), COLUMNS, initial_indent="    ", subsequent_indent="    ")
        found += [row, *origin]
    more = use.left_out + len(use.kinds) - len(shown)
    return [*found, f"and {plural(more, 'kind')} more"] if more else found


def _totals(use: MemoryUse) -> Iterator[ReportLine]:
    """Yield the memory of the process by its kind, and that of its devices."""
    if (resident := use.resident) is not None:
        parts = (
            ("anonymous", resident.anonymous, resident.anonymous_grown),
            ("mapped files", resident.file, resident.file_grown),
            ("shared", resident.shared, resident.shared_grown),
        )
        yield ReportLine("resident", ", ".join(f"{name} {_with_growth(value, grown)}" for name, value, grown in parts))
        if resident.heap is not None:
            kept = _with_growth(resident.heap_kept or 0, resident.heap_kept_grown)
            text = f"{_with_growth(resident.heap, resident.heap_grown)} given out, {kept} freed and kept"
            yield ReportLine("C heap", text)
    tensors = f"tensors and arrays {_with_growth(use.tensor_bytes, use.tensor_grown)}"
    yield ReportLine("Python", f"{tensors}, other objects {_with_growth(use.object_bytes, use.object_grown)}")
    for device in use.devices:
        yield from _device(device)
    yield ReportLine("held", f"for {use.census_ns / 1e9:.1f} s, by both counts")


def _device(device: DeviceMemory) -> Iterator[ReportLine]:
    allocated = f"{_with_growth(device.allocated, device.allocated_grown)} allocated"
    reserved = f"{_with_growth(device.reserved, device.reserved_grown)} reserved"
    yield ReportLine(device.device, f"{allocated} of {reserved}, at most {size(device.peak)}")
    if device.snapshot:
        yield ReportLine("history", f"{clean_line(device.snapshot)}, opened by {VIEWER}")
    if device.problem:
        yield ReportLine("history", device.problem)


def listing(kept: Sequence[Kept[Censused]]) -> list[str]:
    """Return a line for each."""
    return aligned(
        [
            [
                each.number,
                date(each.found.at),
                _steps(each),
                ranks_in_spans(one.rank for one in each.found.ranks),
                each.found.finding,
            ]
            for each in kept
        ]
    )


def as_json(kept: Kept[Censused]) -> dict[str, Any]:
    """Return it as it is printed with `--json`."""
    first = kept.found.ranks[0].use
    return {
        "number": kept.number,
        "run": kept.found.run,
        "at": kept.found.at,
        "steps": [first.first, first.last],
        "accused": kept.found.accused,
        "ranks": [_rank_json(each) for each in kept.found.ranks],
    }


def _rank_json(each: RankMemory) -> dict[str, Any]:
    use = each.use
    return {
        "rank": each.rank,
        "host": each.host or None,
        "cause": each.cause,
        "kinds": [{"name": kind.name, **_fields(kind)} for kind in use.kinds],
        "left_out": use.left_out,
        "whole": use.is_whole,
        "remarks": list(use.remarks),
        "tensor_bytes": use.tensor_bytes,
        "tensor_grown_bytes": use.tensor_grown,
        "object_bytes": use.object_bytes,
        "object_grown_bytes": use.object_grown,
        "resident": None if use.resident is None else _fields(use.resident),
        "devices": [_fields(device) for device in use.devices],
        "census_ms": round(use.census_ns / 1e6, 1),
        "elapsed_ms": round(use.elapsed_ns / 1e6, 1),
    }


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    found = msgspec.structs.asdict(struct)
    return {
        name: list(value) if isinstance(value, tuple) else None if value == "" else value
        for name, value in found.items()
    }


def _steps(kept: Kept[Censused]) -> str:
    use = kept.found.ranks[0].use
    return f"step {use.first:,}" if use.first == use.last else f"steps {use.first:,} to {use.last:,}"


def _name(kind: ObjectKind) -> str:
    named = kind.name
    # Of tensors the class says more only where it is another one.
    return clean_line(named if kind.type in ("Tensor", "ndarray", named) else f"{kind.type} {named}", _NAME)


def _origin(kind: ObjectKind) -> str:
    made = f"made at {kind.made}" if kind.made else ""
    held = f"held by {kind.holder}" if kind.holder else ""
    return ", ".join(each for each in (made, held) if each)


def _more(value: int) -> str:
    return f"{value:+,}" if value else ""


def _more_bytes(value: int) -> str:
    return f"{'+' if value > 0 else '-'}{size(abs(value))}" if value else ""


def _with_growth(value: int, grown: int) -> str:
    return f"{size(value)} ({_more_bytes(grown)})" if grown else size(value)
