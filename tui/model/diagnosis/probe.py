"""Probes as lines of text, the same on the dashboard and in plain output, and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ddptop.agent.observer.judge.probe import Connection, Experiments, Probe, Rank, typical
from ddptop.agent.observer.record.probes import Kept
from ddptop.agent.text import clean_line, plural, size
from ddptop.agent.wire import Facts
from ddptop.tui.drawing.units import date
from ddptop.tui.model.diagnosis.kinds import KINDS
from ddptop.tui.model.diagnosis.report import ReportLine

_MOST_RANKS: Final = 32
"""Ranks of a table at most, the slowest."""
_MOST_CONNECTIONS: Final = 10
_UNKNOWN: Final = "–"
_COLUMNS: Final = (
    ("host", "host GF", 1e9), ("compute", "GFLOP/s", 1e9), ("memory", "memory GB/s", 1e9), ("upload", "upload", 1e9),
)  # fmt: skip
"""Experiments that are made alone and together, the heads of their columns, and their units."""
_DISKS: Final = (
    ("disk_write", "write MB/s", 1e6), ("disk_read", "read MB/s", 1e6),
    ("checkpoint_write", "ckpt write", 1e6), ("checkpoint_read", "ckpt read", 1e6),
)  # fmt: skip


def head(kept: Kept) -> str:
    """Return what was probed: `probe 0003: step 120, held for 3.1 s, 2026-11-27 14:05:03`."""
    probe = kept.probe
    return f"probe {kept.number}: step {probe.step:,}, held for {probe.took_s:.1f} s, {date(probe.at)}"


def sentences(probe: Probe) -> list[str]:
    """Return what was found."""
    return [clean_line(text, 400) for text in probe.sentences]


def remarks(probe: Probe) -> list[str]:
    """Return what else is worth knowing, and what was left out."""
    left_out = [f"left out: {text}" for text in probe.left_out]
    return [clean_line(text, 400) for text in (*probe.notes, *left_out)]


def rates(probe: Probe) -> list[str]:
    """Return the rates of each rank as a table, alone and together, its head first."""
    shown, more = _shown(probe)
    columns = [each for each in _COLUMNS if any(each[0] in rank.alone.rates for rank in shown)]
    disks = [each for each in _DISKS if any(each[0] in rank.alone.rates for rank in shown)]
    names = [name for _, name, _ in columns]
    rows = [["rank", *_hosts(probe, None), *(part for name in names for part in (name, "all")), *(d[1] for d in disks)]]
    for rank in shown:
        row = [str(rank.rank), *_hosts(probe, rank)]
        for name, _, unit in columns:
            row += [_rate(rank.alone, name, unit), _rate(rank.together, name, unit)]
        rows.append(row + [_rate(rank.alone, name, unit) for name, _, unit in disks])
    return [*_aligned(rows), *more]


def circumstances(probe: Probe) -> list[str]:
    """Return the circumstances of each rank as a table, its head first."""
    shown, more = _shown(probe)
    rows = [["rank", "cores", "threads", "load", "steal %", "others %", "limit", "throttled", "MHz", "swapped"]]
    for rank in shown:
        facts = rank.closer or rank.facts
        if facts is not None:
            rows.append([str(rank.rank), *_facts(facts)])
    lines = [*_aligned(rows), *more] if len(rows) > 1 else []
    boards = [
        (rank.rank, rank.facts.board) for rank in shown if rank.facts is not None and rank.facts.board is not None
    ]
    for number, board in boards:
        parts = [board.name, *board.throttled]
        parts += [f"{board.mhz:,.0f} of {board.highest_mhz:,.0f} MHz"] if board.mhz and board.highest_mhz else []
        parts += [f"{board.celsius:.0f} °C"] if board.celsius is not None else []
        parts += (
            [f"PCIe {board.pcie} x{board.lanes} of {board.highest_pcie} x{board.most_lanes}"] if board.lanes else []
        )
        parts += [plural(board.errors, "memory error")] if board.errors is not None else []
        lines.append(clean_line(f"device of rank {number}: {', '.join(parts)}", 120))
    return lines


def messages(probe: Probe) -> list[str]:
    """Return the messages between ranks as a table, the slowest first, its head first."""
    name = {rank.rank: f" ({clean_line(rank.host, 20)})" for rank in probe.ranks}
    several = len(set(name.values())) > 1
    rows = [["messages", "large", "GB/s", "ms", "small ms"]]

    def row(between: str, bytes_: int, large: Sequence[float], small: Sequence[float]) -> list[str]:
        took, early = typical(large), typical(small)
        rate = _UNKNOWN if not took else f"{bytes_ / took / 1e9:.2f}"
        return [
            between,
            size(bytes_),
            rate,
            *(_UNKNOWN if each is None else f"{1e3 * each:.2f}" for each in (took, early)),
        ]

    for each in sorted(probe.connections, key=_speed)[:_MOST_CONNECTIONS]:
        ends = [f"{rank}{name[rank] if several else ''}" for rank in (each.sender, each.receiver)]
        rows.append(row(f"rank {ends[0]} to {ends[1]}", each.size, each.large_s, each.small_s))
    if probe.large_s:
        rows.append(row("all ranks", probe.large_size, probe.large_s, probe.small_s))
    if len(rows) == 1:
        return []
    more = len(probe.connections) - _MOST_CONNECTIONS
    lines = _aligned(rows, left=1)
    return [*lines, f"and {plural(more, 'connection')} that carry more"] if more > 0 else lines


def text(kept: Kept) -> list[str]:
    """Return the whole of a probe as lines."""
    lines = [head(kept), *sentences(kept.probe), *remarks(kept.probe)]
    for table in (rates(kept.probe), messages(kept.probe), circumstances(kept.probe)):
        lines += ["", *table] if table else []
    return lines


def newest(kept: Sequence[Kept]) -> list[ReportLine]:
    """Return the newest probe as lines of a screen."""
    if not kept:
        return [ReportLine("", KINDS["probe"].none)]
    first = kept[0]
    lines = [ReportLine("", head(first), "bold value"), ReportLine("", "")]
    lines += [ReportLine("found" if at == 0 else "", said) for at, said in enumerate(sentences(first.probe))]
    lines += [ReportLine("also" if at == 0 else "", said) for at, said in enumerate(remarks(first.probe))]
    for table in (rates(first.probe), messages(first.probe), circumstances(first.probe)):
        lines += [ReportLine("", ""), *(ReportLine("", line) for line in table)] if table else []
    return lines


def listing(kept: Sequence[Kept]) -> list[str]:
    """Return a line for each probe."""
    rows = [
        [
            each.number,
            date(each.probe.at),
            f"step {each.probe.step:,}",
            clean_line(next(iter(each.probe.sentences), "")),
        ]
        for each in kept
    ]
    return _aligned(rows, left=4)


def as_json(kept: Kept) -> dict[str, Any]:
    """Return a probe as it is printed with `--json`."""
    found: dict[str, Any] = msgspec.to_builtins(kept.probe)
    for rank, told in zip(kept.probe.ranks, found["ranks"], strict=True):
        told["facts"], told["closer"] = _named(rank.facts), _named(rank.closer)
    return {"number": kept.number, "file": str(kept.file), **found}


def _named(facts: Facts | None) -> dict[str, Any] | None:
    if facts is None:
        return None
    return {
        **msgspec.structs.asdict(facts),
        "board": None if facts.board is None else msgspec.structs.asdict(facts.board),
    }


def _shown(probe: Probe) -> tuple[list[Rank], list[str]]:
    """Return the ranks of a table, and the line on those that are not in it."""
    if len(probe.ranks) <= _MOST_RANKS:
        return probe.ranks, []
    slowest = sorted(probe.ranks, key=lambda each: typical(each.alone.rates.get("compute", [])) or 0.0)[:_MOST_RANKS]
    more = f"and {plural(len(probe.ranks) - _MOST_RANKS, 'rank')} that compute faster: probe.json"
    return sorted(slowest, key=lambda each: each.rank), [more]


def _hosts(probe: Probe, rank: Rank | None) -> list[str]:
    if len({each.host for each in probe.ranks}) < 2:
        return []
    return ["host" if rank is None else clean_line(rank.host, 12)]


def _rate(done: Experiments, name: str, unit: float) -> str:
    value = typical(done.rates.get(name, []))
    return _UNKNOWN if value is None else f"{value / unit:,.0f}" if value >= 99.5 * unit else f"{value / unit:.1f}"


def _facts(facts: Facts) -> list[str]:
    def shown(value: float | None, form: str = ",.0f") -> str:
        return _UNKNOWN if value is None else format(value, form)

    limit = "none" if facts.quota is None else f"{facts.quota:g}"
    return [
        clean_line(facts.which, 16) or _UNKNOWN, shown(facts.threads), shown(facts.load, ".1f"),
        shown(facts.steal_percent), shown(facts.others_percent), limit, shown(facts.throttled_ms), shown(facts.mhz),
        _UNKNOWN if facts.swapped is None else size(facts.swapped),
    ]  # fmt: skip


def _speed(connection: Connection) -> float:
    took = typical(connection.large_s)
    return connection.size / took if took else 0.0


def _aligned(rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """Return rows as lines; the first `left` columns at the left, numbers at the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
