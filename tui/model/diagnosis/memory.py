"""The memory of some ranks as lines of text, the same on the dashboard and in plain output, and as JSON. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ddptop.agent.observer.judge.growth import name_of
from ddptop.agent.observer.record.memory import Kept, RankMemory
from ddptop.agent.text import clean_line, ranks_in_spans, size
from ddptop.agent.wire import DeviceMemory, MemoryUse, ObjectKind
from ddptop.tui.drawing.units import date
from ddptop.tui.model.diagnosis.kinds import COLUMNS, KINDS
from ddptop.tui.model.diagnosis.report import ReportLine

_MOST_LINES: Final = 12
"""Kinds of the table at most."""
_NAME: Final = 42
"""Cells of the name of a kind at most."""
VIEWER: Final = "https://docs.pytorch.org/memory_viz"


def head(kept: Kept) -> str:
    """Return what was looked at: `memory 0003: ranks 0-3 over steps 120 to 122, 2026-11-27 14:05:03`."""
    ranks = ranks_in_spans(each.rank for each in kept.census.ranks)
    return f"memory {kept.number}: {ranks} over {_steps(kept)}, {date(kept.census.at)}"


def table(use: MemoryUse) -> list[str]:
    """Return the kinds of objects as a table of at most 80 columns, its head first; the origin stands below a kind."""
    shown = use.kinds[:_MOST_LINES]
    rows = [["what lives", "number", "bytes", "more", "more bytes"]]
    rows += [
        [_name(each), f"{each.count:,}", size(each.bytes), _more(each.grown), _more_bytes(each.grown_bytes)]
        for each in shown
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    first, *rest = (
        "  ".join(cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    )
    lines = [first.rstrip()]
    for line, each in zip(rest, shown, strict=True):
        lines.append(line.rstrip())
        if origin := _origin(each):
            lines += textwrap.wrap(origin, COLUMNS, initial_indent="    ", subsequent_indent="    ")
    more = use.left_out + len(use.kinds) - len(shown)
    return [*lines, f"and {more:,} more kinds: --json has {len(use.kinds)} of them"] if more else lines


def totals(use: MemoryUse) -> list[str]:
    """Return the memory of the process by its kind, and that of its devices."""
    lines = []
    if (resident := use.resident) is not None:
        parts = (
            ("anonymous", resident.anonymous, resident.anonymous_grown),
            ("mapped files", resident.file, resident.file_grown),
            ("shared", resident.shared, resident.shared_grown),
        )
        said = ", ".join(f"{name} {_with_growth(value, grown)}" for name, value, grown in parts)
        lines.append(f"resident memory: {said}")
        if resident.heap is not None:
            lines.append(f"given out by the C heap: {_with_growth(resident.heap, resident.heap_grown)}")
            kept = _with_growth(resident.heap_kept or 0, resident.heap_kept_grown)
            lines.append(f"freed, and kept by the C heap: {kept}")
    lines.append(
        f"seen by Python: tensors and arrays {_with_growth(use.tensor_bytes, use.tensor_grown)}, "
        f"other objects {_with_growth(use.object_bytes, use.object_grown)}"
    )
    for device in use.devices:
        lines += _device(device)
    lines.append(f"the two counts held the rank for {use.census_ns / 1e9:.1f} s")
    return lines


def _device(device: DeviceMemory) -> list[str]:
    lines = [
        f"{device.device}: allocated {_with_growth(device.allocated, device.allocated_grown)} of "
        f"{_with_growth(device.reserved, device.reserved_grown)} reserved, at most {size(device.peak)}"
    ]
    if device.snapshot:
        lines.append(f"    the allocator's history: {clean_line(device.snapshot)}, shown by {VIEWER}")
    return [*lines, *([f"    {device.problem}"] if device.problem else [])]


def text(kept: Kept) -> list[str]:
    """Return the whole of it as lines of at most 80 columns; the table is of the rank that grew most."""
    first = kept.census.ranks[0]
    said = [
        line
        for ranks, cause in kept.census.sentences
        for line in textwrap.wrap(f"{ranks}: {cause}", COLUMNS, subsequent_indent="    ")
    ]
    below = [line for each in totals(first.use) for line in textwrap.wrap(each, COLUMNS, subsequent_indent="    ")]
    return [head(kept), *said, "", *table(first.use), "", *below, *_others(kept, first)]


def _others(kept: Kept, first: RankMemory) -> list[str]:
    return [f"the table is of rank {first.rank}; --ranks names another one"] if len(kept.census.ranks) > 1 else []


def newest(kept: Sequence[Kept]) -> list[ReportLine]:
    """Return the newest one as lines of a screen."""
    if not kept:
        return [ReportLine("", KINDS["memory"].none)]
    found = kept[0]
    first = found.census.ranks[0]
    lines = [ReportLine("", head(found), "bold value"), ReportLine("", "")]
    lines += [ReportLine(ranks, cause) for ranks, cause in found.census.sentences]
    lines += [ReportLine("", ""), *(ReportLine("", line) for line in table(first.use)), ReportLine("", "")]
    return [*lines, *(ReportLine("", line) for line in totals(first.use) + _others(found, first))]


def listing(kept: Sequence[Kept]) -> list[str]:
    """Return a line for each."""
    rows = [
        [each.number, date(each.census.at), _steps(each), ranks_in_spans(one.rank for one in each.census.ranks)]
        for each in kept
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)] if rows else []
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=True)), each.census.ranks[0].cause])
        for row, each in zip(rows, kept, strict=True)
    ]


def as_json(kept: Kept) -> dict[str, Any]:
    """Return it as it is printed with `--json`."""
    first = kept.census.ranks[0].use
    return {
        "number": kept.number,
        "run": kept.census.run,
        "at": kept.census.at,
        "steps": [first.first, first.last],
        "accused": kept.census.accused,
        "ranks": [_rank_json(each) for each in kept.census.ranks],
    }


def _rank_json(each: RankMemory) -> dict[str, Any]:
    use = each.use
    return {
        "rank": each.rank,
        "host": each.host or None,
        "cause": each.cause,
        "kinds": [{"name": name_of(kind), **_fields(kind)} for kind in use.kinds],
        "left_out": use.left_out,
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


def _steps(kept: Kept) -> str:
    use = kept.census.ranks[0].use
    return f"step {use.first:,}" if use.first == use.last else f"steps {use.first:,} to {use.last:,}"


def _name(kind: ObjectKind) -> str:
    named = name_of(kind)
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
