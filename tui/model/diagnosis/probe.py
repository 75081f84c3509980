"""Probes as lines of text, the same on the dashboard and in plain output, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ddptop.agent.text import clean_line, plural, size
from ddptop.agent.wire import Board, Facts
from ddptop.agent.wire.diagnoses.kept import Kept
from ddptop.agent.wire.diagnoses.probed import Experiments, Probe, Rank, speed, typical
from ddptop.tui.drawing.units import COLUMNS, DASH, aligned, date
from ddptop.tui.model.diagnosis.report import ReportLine, block

_MOST_RANKS: Final = 32
"""Ranks of a table at most, the slowest."""
_MOST_CONNECTIONS: Final = 10
_HOST: Final = 12
"""Characters of the name of a host at most."""
_SENTENCE: Final = 400
"""Characters of a sentence at most."""
_RATES: Final = (
    ("host", "host GFLOP/s", 1e9, True), ("compute", "GFLOP/s", 1e9, True),
    ("disk_write", "write MB/s", 1e6, False), ("disk_read", "read MB/s", 1e6, False),
    ("checkpoint_write", "ckpt write", 1e6, False), ("checkpoint_read", "ckpt read", 1e6, False),
)  # fmt: skip
"""By experiment the head of its column, its unit, and True where all ranks make it together, too."""
_FACTS: Final = (
    "rank", "cores", "threads", "load", "steal %", "others %", "limit", "throttled", "MHz", "swap",
)  # fmt: skip
"""The heads of the columns of `_facts`, that of the rank before them."""


def lines(kept: Kept[Probe], _: int) -> list[ReportLine]:
    """Return the whole of a probe, which is always one of all ranks."""
    probe = kept.found
    head = f"probe {kept.number}: step {probe.step:,}, held for {probe.took_s:.1f} s, {date(probe.at)}"
    found = [ReportLine("", head, "bold value"), ReportLine("", "")]
    boards = [(rank.rank, rank.facts.board) for rank in _shown(probe)[0] if rank.facts and rank.facts.board]
    for label, texts in (("found", probe.sentences), ("also", probe.notes), ("left out", probe.left_out)):
        found += [ReportLine(label, clean_line(text, _SENTENCE)) for text in texts]
    for table in (_rates(probe), _messages(probe), _circumstances(probe)):
        found += block(table)
    return found + [ReportLine(f"rank {rank}", _device(board)) for rank, board in boards]


def _rates(probe: Probe) -> list[str]:
    """Return the rates of each rank as a table, alone and together with the others, its head first."""
    shown, more = _shown(probe)
    first = [["rank", *(str(rank.rank) for rank in shown)]]
    if _has_hosts(probe):
        first.append(["host", *(clean_line(rank.host, _HOST) for rank in shown)])
    groups = []
    for name, head, unit, has_together in _RATES:
        if any(name in rank.alone.rates for rank in shown):
            groups.append([[head, *(_rate(rank.alone, name, unit) for rank in shown)]])
            if has_together:
                groups[-1].append(["together", *(_rate(rank.together, name, unit) for rank in shown)])
    return [*_folded(first, groups), *more] if groups else []


def _circumstances(probe: Probe) -> list[str]:
    """Return the circumstances of each rank as a table, its head first."""
    shown, more = _shown(probe)
    rows = [[str(rank.rank), *_facts(facts)] for rank in shown if (facts := rank.facts) is not None]
    if not rows:
        return []
    first, *others = ([head, *column] for head, column in zip(_FACTS, zip(*rows, strict=True), strict=False))
    return [*_folded([first], [[column] for column in others]), *more]


def _device(board: Board) -> str:
    parts = [board.name, *board.throttled]
    if board.mhz and board.highest_mhz:
        parts.append(f"{board.mhz:,.0f} of {board.highest_mhz:,.0f} MHz")
    if board.celsius is not None:
        parts.append(f"{board.celsius:.0f} °C")
    if board.lanes:
        parts.append(f"PCIe {board.pcie} x{board.lanes} of {board.highest_pcie} x{board.most_lanes}")
    if board.errors is not None:
        parts.append(plural(board.errors, "memory error"))
    return f"device: {', '.join(parts)}"


def _messages(probe: Probe) -> list[str]:
    """Return the messages between ranks as a table, the slowest first, its head first."""
    hosts = {rank.rank: clean_line(rank.host, _HOST) for rank in probe.ranks}

    def end(rank: int) -> str:
        return f"{rank} ({hosts[rank]})" if _has_hosts(probe) else str(rank)

    def row(between: str, bytes_: int, large: Sequence[float], small: Sequence[float]) -> list[str]:
        took, early = typical(large), typical(small)
        rate = DASH if not took else f"{bytes_ / took / 1e9:.2f}"
        return [between, size(bytes_), rate, *(DASH if each is None else f"{1e3 * each:.2f}" for each in (took, early))]

    slowest = sorted(probe.connections, key=speed)
    rows = [
        row(f"rank {end(each.sender)} to {end(each.receiver)}", each.size, each.large_s, each.small_s)
        for each in slowest[:_MOST_CONNECTIONS]
    ]
    if probe.large_s:
        rows.append(row("all ranks", probe.large_size, probe.large_s, probe.small_s))
    if not rows:
        return []
    more = len(slowest) - _MOST_CONNECTIONS
    found = aligned([["messages", "large", "GB/s", "ms", "small ms"], *rows], left=1)
    return [*found, f"and {plural(more, 'connection')} that carry more"] if more > 0 else found


def listing(kept: Sequence[Kept[Probe]]) -> list[str]:
    """Return a line for each probe."""
    return aligned(
        [
            [
                each.number,
                date(each.found.at),
                f"step {each.found.step:,}",
                clean_line(next(iter(each.found.sentences), "")),
            ]
            for each in kept
        ]
    )


def as_json(kept: Kept[Probe]) -> dict[str, Any]:
    """Return a probe as it is printed with `--json`."""
    found: dict[str, Any] = msgspec.to_builtins(kept.found)
    for rank, fields in zip(kept.found.ranks, found["ranks"], strict=True):
        fields["facts"] = _named(rank.facts)
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


def _has_hosts(probe: Probe) -> bool:
    """Return True where the ranks are on several hosts."""
    return len({each.host for each in probe.ranks}) > 1


def _rate(done: Experiments, name: str, unit: float) -> str:
    value = typical(done.rates.get(name, []))
    return DASH if value is None else f"{value / unit:,.0f}" if value >= 99.5 * unit else f"{value / unit:.1f}"


def _facts(facts: Facts) -> list[str]:
    def shown(value: float | None, form: str = ",.0f", unit: str = "") -> str:
        return DASH if value is None else f"{value:{form}}{unit}"

    limit = "none" if facts.quota is None else f"{facts.quota:g}"
    return [
        clean_line(facts.which, 16) or DASH, shown(facts.threads), shown(facts.load, ".1f"),
        shown(facts.steal_percent), shown(facts.others_percent), limit, shown(facts.throttled_ms, ",.0f", " ms"),
        shown(facts.mhz), DASH if facts.swapped is None else size(facts.swapped),
    ]  # fmt: skip


def _folded(first: list[list[str]], groups: Iterable[list[list[str]]]) -> list[str]:
    """Return columns as lines; groups of them that have no room make tables below, each with the first columns."""
    tables = [list(first)]
    for group in groups:
        if sum(max(map(len, column)) + 2 for column in [*tables[-1], *group]) - 2 > COLUMNS:
            tables.append(list(first))
        tables[-1] += group
    return [line for columns in tables for line in ("", *aligned(list(zip(*columns, strict=True)), left=0))][1:]
