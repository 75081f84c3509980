"""Everything known about one rank, as rows: what its panel has no room for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len
from rich.segment import Segment

from ddptop.agent.text import clean
from ddptop.agent.wire.latencies import ALL_REDUCE
from ddptop.tui.drawing import units
from ddptop.tui.drawing.bars import gauge, phase_bar, sparkline
from ddptop.tui.drawing.lines import Row, width_of
from ddptop.tui.drawing.theme import MARKS, Ink, letters_of
from ddptop.tui.model.frame import ENDED, Frame, RankFrame
from ddptop.tui.views.panels.panel import load_of, mark_of
from ddptop.tui.views.rank.histories import latency_rows
from ddptop.tui.views.table.grouping import clock_of

_LABEL = 13
_SHARES_AND_DEVICE = 52
"""Cells from which on a phase has its share beside its time on the device."""


def fact_rows(rank: RankFrame, frame: Frame, width: int, ink: Ink, histories: Sequence[Row] = ()) -> list[Row]:
    """Return the rows of a rank's own screen, at most `width` cells each.

    What a slow or broken rank is known by comes first; what it is comes last. `histories` stand between them, where the
    screen has no room for them beside.
    """
    rows: list[Row] = []
    for title, lines in (
        (None, _state(rank, frame, width, ink)),
        ("step", _step(rank, frame, width, ink)),
        ("communication", _communication(rank, frame, width, ink)),
        ("loss", _loss(rank, width, ink)),
        ("history", histories),
        ("custom metrics", _metrics(rank, width, ink)),
        ("resources", _resources(rank, width, ink)),
        ("process", _process(rank, frame, width, ink)),
        ("telemetry", _telemetry(rank, width, ink)),
    ):
        found = list(lines)
        if not found:
            continue
        if title is not None:
            rows.append([Segment(title, ink["bold brand"])])
        rows += found
    return rows


def _fact(label: str, value: str, width: int, ink: Ink, hue: str = "value", after: str = "") -> Iterator[Row]:
    """Yield a label, its value and a remark, on as many lines as they take."""
    known = value.strip() != units.DASH
    room = max(8, width - _LABEL)
    style = ink[hue if known else "faint"]
    lines: list[Row] = [[Segment(line, style)] for line in units.wrapped(value, room)]
    if known and after:
        first, *others = units.wrapped(after, room)
        if width_of(lines[-1]) + cell_len(first) <= room and not others:
            lines[-1].append(Segment(first, ink["label"]))
        else:
            lines += [[Segment(line.lstrip(), ink["label"])] for line in (first, *others)]
    for index, line in enumerate(lines):
        yield [Segment(f"  {'' if index else label:<{_LABEL - 2}}", ink["label"]), *line]


def _state(rank: RankFrame, frame: Frame, width: int, ink: Ink) -> Iterator[Row]:
    mark, hue = mark_of(rank, frame)
    yield [
        Segment(f"rank {rank.rank} ", ink["bold value"]),
        Segment(f"of {frame.world}  ", ink["label"]),
        Segment(f"{MARKS[rank.state]} {rank.state}", ink[f"bold state-{rank.state}"]),
        Segment(f"  {mark}" if mark else "", ink[hue]),
    ]
    if rank.ended is not None:
        yield from _fact("ended", rank.ended, width, ink, f"bold state-{rank.state}")
    elif rank.state != "running":
        yield from _fact("doing", rank.activity or units.DASH, width, ink)


def _process(rank: RankFrame, frame: Frame, width: int, ink: Ink) -> Iterator[Row]:
    if rank.coordinates:
        place = ", ".join(f"{name} {where}" for name, where in rank.coordinates.items())
        yield from _fact("place", place, width, ink)
    yield from _fact("pid", units.DASH if rank.pid is None else str(rank.pid), width, ink)
    yield from _fact("host", rank.host or units.DASH, width, ink)
    if (host := frame.hosts.of(rank.rank)) is not None and frame.hosts.several:
        told = host.told.removeprefix(f"{host.host} is ") or host.state
        away = "" if host.rtt_ms is None else f"its observer is {host.rtt_ms:.2f} ms away"
        yield from _fact("link", ", ".join(filter(None, (told, away, clock_of(host)))) or units.DASH, width, ink)
    yield from _fact("device", rank.device or units.DASH, width, ink, after=f"  {frame.backend or ''}")
    if rank.torch_version or rank.python_version:
        versions = f"torch {rank.torch_version or units.DASH}, Python {rank.python_version or units.DASH}"
        yield from _fact("runs on", versions, width, ink)


def _step(rank: RankFrame, frame: Frame, width: int, ink: Ink) -> Iterator[Row]:
    yield from _fact(
        "time", units.milliseconds(rank.current_step_ms), width, ink, after=" ms, mean of the last seconds"
    )
    if rank.phases_ms is not None and rank.step_ms:
        yield from _phases(rank, rank.phases_ms, rank.step_ms, frame, width, ink)
    yield from _fact("number", units.count(rank.step).rjust(6), width, ink)
    if rank.state not in ENDED:
        yield from _fact("age", units.age(rank.step_age_s), width, ink, after=" since the last one was completed")
    yield from _fact("samples", units.rate(rank.samples_per_s).rjust(6), width, ink, after=" samples/s")


def _phases(
    rank: RankFrame, phases_ms: Mapping[str, float], step_ms: float, frame: Frame, width: int, ink: Ink
) -> Iterator[Row]:
    # While it stands, the bar is of before.
    label = f"  {'last steps' if rank.stands else '':<{_LABEL - 2}}"
    yield [Segment(label, ink["label"]), *phase_bar(phases_ms, frame.step_ms or step_ms, width - _LABEL - 1, ink)]
    for phase, letter in letters_of(phases_ms).items():
        value = phases_ms.get(phase)
        share = None if value is None else value / step_ms
        on_device = None if rank.device_ms is None else rank.device_ms.get(phase)
        narrow = rank.device_ms is not None and width < _SHARES_AND_DEVICE
        yield [
            Segment("  "),
            Segment(letter, ink.block(phase)[0]),
            Segment(f" {phase:<{_LABEL - 3}}", ink["label"]),
            Segment(units.milliseconds(value), ink["value"]),
            Segment(" ms ", ink["label"]),
            Segment("" if narrow else units.percent(None if share is None else 100 * share, 5) + "  ", ink["value"]),
            *(
                gauge(share, min(20, width - (48 if rank.device_ms else 30)), ink)
                if share is not None and width > 56
                else []
            ),
            Segment(
                ""
                if on_device is None
                else f"{units.milliseconds(on_device)} gpu"
                if narrow
                else f"  {units.milliseconds(on_device)} ms on gpu",
                ink["label"],
            ),
        ]


def _loss(rank: RankFrame, width: int, ink: Ink) -> Iterator[Row]:
    broken = rank.loss is not None and not math.isfinite(rank.loss)
    text = units.loss(rank.loss, unsure=rank.is_loss_unsure)
    why = "  ~: how the script divides it is not seen" if rank.is_loss_unsure else ""
    yield from _fact("last", text, width, ink, "bold level-error" if broken else "value", after=why)
    if rank.health is not None:
        yield from _fact("health", rank.health, width, ink, "bold level-error")
    if any(value is not None for value in rank.losses):
        for index, row in enumerate(sparkline(rank.losses, rank.step or 0, min(60, width - _LABEL - 1), ink, 2)):
            yield [Segment(f"  {'history' if index == 0 else '':<{_LABEL - 2}}", ink["label"]), *row]


def _communication(rank: RankFrame, frame: Frame, width: int, ink: Ink) -> Iterator[Row]:
    kind, *both = rank.collective
    text = (
        units.DASH
        if both == [None, None]
        else "  ".join(f"{units.milliseconds(value)} ms p{which}" for which, value in zip((50, 99), both, strict=True))
    )
    yield from _fact(
        units.shorten(units.collective(kind), _LABEL - 2), text, width, ink, after="  waiting for peers included"
    )
    split = (rank.allreduce_wait_ms, rank.allreduce_transfer_ms)
    if kind == ALL_REDUCE and split != (None, None):
        waited, transferred = map(units.milliseconds, split)
        yield from _fact(
            "  of it", f"{waited} ms a step until the last rank came, {transferred.strip()} ms after", width, ink
        )
    yield from _fact("in flight", str(rank.outstanding).rjust(6) if rank.mechanism else units.DASH, width, ink)
    sampled = f", one step of {rank.timed_every} timed" if rank.timed_every > 1 else ""
    why = "no collective so far" if rank.communicated is False else "collectives are not hooked in this process"
    seen = f"{units.DASH} ({why})"
    yield from _fact("seen by", f"{rank.mechanism}{sampled}" if rank.mechanism else seen, width, ink)
    if frame.history is not None:
        yield from latency_rows(frame.history.steps.by_rank(rank.rank), width, ink)


def _resources(rank: RankFrame, width: int, ink: Ink) -> Iterator[Row]:
    kind = "device memory of this process" if rank.memory_kind == "device" else "resident memory of the process"
    total = rank.memory_total_bytes
    named = f"  {kind}" if rank.memory_bytes is not None and not total else ""
    *rows, row = _fact("memory", units.size(rank.memory_bytes), width, ink, after=named)
    if rank.memory_bytes is not None and total:
        row += [
            Segment(f" of {units.size(total)}  ", ink["label"]),
            *gauge(rank.memory_bytes / total, max(0, min(20, width - _LABEL - 24)), ink),
        ]
    yield from (*rows, row)
    name, load = load_of(rank)
    if name == "gpu":
        yield from _fact("gpu", units.percent(load, 6), width, ink)
    yield from _fact("cpu", units.percent(rank.cpu_percent, 6), width, ink, after=" of one core, workers included")


def _metrics(rank: RankFrame, width: int, ink: Ink) -> Iterator[Row]:
    for name, value in sorted(rank.metrics.items())[:20]:
        yield [
            Segment(f"  {units.fit(name, min(24, max(4, width - 14)))} ", ink["label"]),
            Segment(units.significant(value, 6), ink["value"]),
        ]


def _telemetry(rank: RankFrame, width: int, ink: Ink) -> Iterator[Row]:
    if rank.state not in ENDED:
        yield from _fact("heard", units.age(rank.heard_age_s), width, ink, after=" ago, last sign of life")
    lost = f"{rank.missed:,} missed, {rank.dropped:,} dropped, {rank.refused:,} refused"
    yield from _fact(
        "records", lost, width, ink, "level-warning" if rank.missed + rank.dropped + rank.refused else "value"
    )
    fault = rank.fault
    errors = f"{rank.faults:,} errors, the last: {fault}" if rank.faults > 1 else fault
    yield from _fact("agent", errors or "no fault", width, ink, "level-error" if fault else "value")
    elsewhere = f"on {rank.host or 'another host'}" if rank.far else "to the terminal that started it"
    yield from _fact("log", elsewhere if rank.far else clean(rank.log or "") or elsewhere, width, ink)
