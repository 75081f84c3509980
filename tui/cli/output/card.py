"""`status` for people: what is wrong with a run first, then its progress, then a line for each rank."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final, NamedTuple

from ddptop.agent.client.frame import Frame
from ddptop.agent.text import plural
from ddptop.agent.wire import PHASES
from ddptop.agent.wire.frames import OUTSIDE, UNREPORTED, RankFrame
from ddptop.tui.cli.output.plain import progress, throughput
from ddptop.tui.cli.output.status import remark
from ddptop.tui.drawing.units import DASH, collective, count, loss, milliseconds
from ddptop.tui.model.diagnosis import hang
from ddptop.tui.model.metrics import metric_named
from ddptop.tui.model.sentences import (
    by_looks,
    judging,
    not_linked,
    outside,
    place_of_looks,
    recording,
    time_left,
    unheard_hosts,
    waits_for,
)  # fmt: skip

_GAP: Final = "  "


class _Column(NamedTuple):
    """One column of the ranks."""

    title: str
    value: Callable[[RankFrame], str]
    rank: int
    """Where there is no room for all columns, those of the lowest numbers are shown."""
    left: bool = False
    """True where its values begin in the same cell; numbers end in the same."""


def card(frame: Frame, width: int | None = None) -> list[str]:
    """Return the lines of `status`, with the columns of the ranks that fit into `width` cells; None: all of them."""
    place = ", ".join(each for each in (frame.backend, frame.one_device or frame.device) if each)
    lines = [
        *_hang(frame),
        _GAP.join(each for each in (frame.run, frame.state, frame.program, _ranks(frame), place) if each),
        "" if hang.verdict_of(frame) is not None else frame.standing,
        *(verdict.text for verdict in frame.verdicts),
        judging(frame),
        _faults(frame),
        *(frame.cause, unheard_hosts(frame), not_linked(frame), remark(frame)),
        outside(frame, f"ddptop attach {frame.run} --join"),
        _progress(frame),
        *(frame.injected and f"injected faults: {frame.injected}", frame.placement, frame.note),
    ]
    return [*dict.fromkeys(filter(None, lines)), *_table(frame, width)]


def _faults(frame: Frame) -> str:
    """Return the fault of the agent inside the first rank that has one; empty where none has."""
    faulty = [rank for rank in frame.ranks if rank.fault]
    if not faulty:
        return ""
    others = f", and {plural(len(faulty) - 1, 'other rank')}" if faulty[1:] else ""
    return f"a fault of the agent in rank {faulty[0].rank}{others}; numbers may be missing: {faulty[0].fault}"


def _ranks(frame: Frame) -> str:
    ranks = plural(frame.world, "rank")
    return f"{ranks} on {len(frame.hosts)} hosts" if frame.hosts.several else ranks


def _hang(frame: Frame) -> list[str]:
    """Return a hang and what can be done, before all else; nothing where the run does not hang."""
    verdict = hang.urgent(frame)
    if verdict is None:
        return []
    return [verdict.text, " · ".join(filter(None, (hang.countdown(frame, verdict), hang.advice(frame))))]


def _progress(frame: Frame) -> str:
    parts = [by_looks(frame) if frame.known_by == OUTSIDE and not frame.from_log else progress(frame)]
    parts += filter(None, (time_left(frame), waits_for(frame)))
    if frame.current_step_ms is not None:
        parts.append(f"{milliseconds(frame.current_step_ms).strip()} ms/step")
    if frame.loss is not None:
        parts.append(f"loss {loss(frame.loss, unsure=frame.is_loss_unsure).strip()}")
    parts += throughput(frame)
    looks = by_looks(frame) if frame.from_log else ""
    return _GAP.join(filter(None, (*parts, recording(frame), looks)))


def _table(frame: Frame, width: int | None) -> list[str]:
    columns = _columns(frame)
    cells = [[each.title, *map(each.value, frame.ranks)] for each in columns]
    widths = [max(map(len, column)) for column in cells]
    shown = _fitting(columns, widths, width)
    culprits, lost = hang.culprits(frame), unheard_hosts(frame)
    rows = []
    for row, rank in enumerate((None, *frame.ranks)):
        texts = [
            cells[index][row].ljust(widths[index]) if columns[index].left else cells[index][row].rjust(widths[index])
            for index in shown
        ]
        rows.append(_GAP.join([*texts, "" if rank is None else _rank_remark(rank, culprits, lost)]).rstrip())
    return rows


def _at(frame: Frame, rank: RankFrame) -> str:
    """Return where a rank stands; not again what is said of all ranks."""
    said = "" if frame.by_looks is None else frame.by_looks.problem
    place = place_of_looks(rank.by_looks)
    return DASH if said and place == said else place


def _columns(frame: Frame) -> list[_Column]:
    seen = {phase for known in frame.values("phases_ms") if known for phase in known}
    seen |= {phase for looks in frame.values("by_looks") if looks for phase in looks.shares}
    orders = {"data": 4, "copy": 8, "wait": 5, "forward": 7, "backward": 8, "optimizer": 11, "other": 14}
    phases = [_Column(phase, partial(_phase, phase), orders[phase]) for phase in PHASES if phase in seen]
    latencies = [
        _number("all_reduce", f"{collective(frame.collective)} p50 ms", 9),
        _number("p99", "p99 ms", 13),
    ]
    is_outside = frame.known_by == OUTSIDE
    return [
        _Column("RANK", lambda rank: str(rank.rank), 0, left=True),
        *([_Column("HOST", lambda rank: rank.host or DASH, 1, left=True)] if frame.hosts.several else []),
        _Column("STATE", lambda rank: rank.state, 1, left=True),
        _Column("STEP", lambda rank: count(rank.step), 2),
        _Column("LOSS", lambda rank: loss(rank.loss, unsure=rank.is_loss_unsure).strip(), 6),
        *([] if is_outside else [_number("step", "STEP ms", 3)]),
        *phases,
        *([_Column("AT", partial(_at, frame), 3, left=True)] if is_outside else latencies),
        _number("memory", "MEMORY", 10),
        _Column("PID", lambda rank: str(rank.pid or DASH), 12),
    ]


def _fitting(columns: list[_Column], widths: list[int], width: int | None) -> list[int]:
    """Return which columns are shown, in their order: those that matter most, as many as there is room for."""
    if width is None:
        return list(range(len(columns)))
    chosen: list[int] = []
    left = width + len(_GAP)
    for index in sorted(range(len(columns)), key=lambda index: columns[index].rank):
        if (taken := widths[index] + len(_GAP)) <= left:
            left -= taken
            chosen.append(index)
    return sorted(chosen)


def _number(name: str, title: str, rank: int) -> _Column:
    """Return the column of a number as the table of the dashboard has it, in as many cells as it needs."""
    metric = metric_named(name)
    return _Column(title, lambda rank: metric.cell(metric.value(rank)).strip(), rank)


def _phase(phase: str, rank: RankFrame) -> str:
    if (looks := rank.by_looks) is not None:
        return f"{looks.shares.get(phase, 0.0):.0%}" if looks.looks else DASH
    # Those of a rank that stands are of before, as its time of a step is.
    return DASH if rank.stands else milliseconds((rank.phases_ms or {}).get(phase)).strip()


def _rank_remark(rank: RankFrame, culprits: Collection[int], told: str) -> str:
    """Return how a rank ended, or what is known of one that cannot say it itself, and whether it hangs.

    What is `told` of all ranks of a host above the table is not said once more beside each.
    """
    if rank.ended:
        return "" if rank.state == "finished" else rank.ended
    by_others = rank.state in ("frozen", "silent") or rank.activity == UNREPORTED
    said = rank.activity if by_others and rank.activity != told else ""
    return " ".join(filter(None, (said, "◀ hangs" if rank.rank in culprits else "")))
