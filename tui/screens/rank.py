"""One rank's own screen: its facts, its history, its loss and its log."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

from rich.cells import cell_len
from rich.segment import Segment
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from ddptop.agent.client.frame import Frame
from ddptop.agent.text import clean
from ddptop.agent.wire import Step
from ddptop.agent.wire.frames import ENDED, OUTSIDE, RankFrame
from ddptop.agent.wire.steps.latencies import ALL_REDUCE
from ddptop.agent.wire.steps.numbers import WIDTHS_S
from ddptop.tui.drawing import units
from ddptop.tui.drawing.bars import gauge, looks_bar, phase_bar, sparkline
from ddptop.tui.drawing.lines import Page, Row, spread, width_of
from ddptop.tui.drawing.theme import LETTERS, MARKS, Ink, letters_of
from ddptop.tui.model.metrics import METRICS, OTHERS, Metric, load_of
from ddptop.tui.model.sentences import place_of_looks
from ddptop.tui.screens.plot import PlottedScreen
from ddptop.tui.views.panels import hue_of_looks, mark_of
from ddptop.tui.views.plot.placeholder import PlotPlaceholder
from ddptop.tui.views.screen.header import Header
from ddptop.tui.views.screen.keybar import KeyBar
from ddptop.tui.views.screen.log import LogView
from ddptop.tui.views.table.grouping import clock_of

_GROUP: Final = Binding.Group("Rank", compact=True)


class RankScreen(PlottedScreen):
    """Facts, histories, plot and log of one rank."""

    is_of_rank = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", id="rank.back", tooltip="Return to all ranks"),
        Binding(
            "right,tab",
            "neighbour(1)",
            "Next",
            id="rank.next",
            tooltip="Show the next rank",
            priority=True,
            group=_GROUP,
        ),
        Binding(
            "left,shift+tab",
            "neighbour(-1)",
            "Previous",
            id="rank.previous",
            tooltip="Show the previous rank",
            priority=True,
            group=_GROUP,
        ),
    ]

    def __init__(self, frame: Frame, rank: int) -> None:
        super().__init__(frame, rank, alone=True)

    def compose(self) -> ComposeResult:
        """Lay out the parts; the plot comes after the first paint."""
        yield Header(self.frame)
        with Horizontal(id="rank"):
            yield Page(id="facts")
            with Vertical(id="beside"):
                with Horizontal(id="history"):
                    yield Page(id="histories", can_focus=False)
                    yield PlotPlaceholder()
                yield LogView()
        yield KeyBar()

    def on_mount(self) -> None:
        """Show the rank; its facts can be scrolled."""
        self.query_one("#facts").focus()

    def on_resize(self) -> None:
        """Draw for another width."""
        self.call_after_refresh(lambda: self.show(self.frame))

    def show(self, frame: Frame) -> None:
        """Pass the frame to the widgets."""
        super().show(frame)
        rank = frame.rank(self.rank)
        if rank is None:
            return
        page, beside = self.query_one("#facts", Page), self.query_one("#histories", Page)
        width = page.scrollable_content_region.width or 40
        histories: list[Row] = []
        if beside.size:
            space = beside.scrollable_content_region.size
            height = 2 if space.height > 2 * len(METRICS) else 1
            beside.show_rows(history_rows(frame, rank.rank, space.width, beside.ink, height=height))
        else:
            histories = history_rows(frame, rank.rank, width, page.ink)
        page.show_rows(fact_rows(rank, frame, width, page.ink, histories))
        self.query_one(LogView).show(rank, still=frame.view_held_s is not None)

    @property
    def logs_in_sight(self) -> frozenset[int]:
        """The log of the rank is a part of the screen."""
        return frozenset({self.rank})

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the arrows to the crosshair while there is one."""
        return not (action == "neighbour" and self.crossing) and super().check_action(action, parameters)

    def choose(self, rank: int) -> None:
        """Show another rank, from the top."""
        self.query_one("#facts").scroll_home(animate=False)
        super().choose(rank)


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
        ("time" if rank.known_by == OUTSIDE else "step", _step(rank, frame, width, ink)),
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


def _fact(
    label: str, value: str, width: int, ink: Ink, hue: str = "value", unit: str = "", after: str = ""
) -> Iterator[Row]:
    """Yield a label, its value with its unit, and a remark, on as many lines as they take."""
    known = value.strip() != units.DASH
    room = max(8, width - _LABEL)
    style = ink[hue if known else "faint"]
    lines: list[Row] = [[Segment(line, style)] for line in units.wrapped(value, room)]
    if known and unit:
        lines[-1].append(Segment(unit, ink["label"]))
    if known and after:
        first, *others = units.wrapped(after, room)
        if width_of(lines[-1]) + cell_len(first) <= room and not others:
            lines[-1].append(Segment(first, ink["label"]))
        else:
            lines += [[Segment(line.lstrip(" ,"), ink["label"])] for line in (first, *others)]
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
    if rank.known_by == OUTSIDE:
        yield from _by_looks(rank, width, ink)
        return
    time = units.milliseconds(rank.current_step_ms)
    yield from _fact("time", time, width, ink, unit=" ms", after=", mean of the last seconds")
    if rank.phases_ms is not None and rank.step_ms:
        yield from _phases(rank, rank.phases_ms, rank.step_ms, frame, width, ink)
    yield from _fact("number", units.count(rank.step).rjust(6), width, ink)
    if rank.state not in ENDED:
        yield from _fact("age", units.age(rank.step_age_s), width, ink, after=" since the last one was completed")
    for metric in OTHERS:
        if metric.fact and ((value := metric.value(rank)) is not None or metric.is_of(frame)):
            yield from _fact(metric.name, metric.cell(value).rjust(6), width, ink, unit=metric.fact)
    if rank.flops is not None:
        speed = f", {units.flops(rank.flops_per_s).strip()}/s, MFU {units.share(rank.mfu).strip()}"
        after = " a step" + ("" if rank.flops_per_s is None else speed)
        yield from _fact("work", units.flops(rank.flops), width, ink, after=after)


def _by_looks(rank: RankFrame, width: int, ink: Ink) -> Iterator[Row]:
    """Yield the parts of its time, each with its standard error, in the place of times that nobody knows."""
    looks = rank.by_looks
    yield [Segment(f"  {'by looks':<{_LABEL - 2}}", ink["label"]), *looks_bar(looks, width - _LABEL - 1, ink)]
    shares, errors = ({}, {}) if looks is None else (looks.shares, looks.errors)
    for phase, share in sorted(shares.items(), key=lambda each: -each[1]):
        yield [
            Segment("  "),
            Segment(LETTERS.get(phase, "?"), ink.block(phase)[0]),
            Segment(f" {phase:<{_LABEL - 3}}", ink["label"]),
            Segment(units.percent(100 * share, 5), ink["value"]),
            Segment(f" ± {100 * errors.get(phase, 0.0):.0f}", ink["label"]),
        ]
    yield from _fact("at", place_of_looks(looks), width, ink, hue_of_looks(looks) if looks else "value")
    if looks is not None and looks.looks:
        cost = f" of the last half minute, at {looks.cost_percent:.1f}% of a core"
        yield from _fact("looks", f"{looks.looks:,}".rjust(6), width, ink, after=cost)
    if rank.from_log:
        yield from _fact("step", units.count(rank.step).rjust(6), width, ink, after=", by its log")


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
    calls, reduces = rank.collective_ms, rank.allreduce_ms
    text = (
        units.DASH
        if calls.p50 is calls.p99 is None
        else f"{units.milliseconds(calls.p50)} ms p50  {units.milliseconds(calls.p99)} ms p99"
    )
    yield from _fact(
        units.shorten(units.collective(calls.op), _LABEL - 2), text, width, ink, after="  waiting for peers included"
    )
    if calls.op == ALL_REDUCE and not (reduces.wait is reduces.transfer is None):
        waited, transferred = units.milliseconds(reduces.wait), units.milliseconds(reduces.transfer)
        yield from _fact(
            "  of it", f"{waited} ms a step until the last rank came, {transferred.strip()} ms after", width, ink
        )
    yield from _fact("in flight", str(rank.outstanding).rjust(6) if rank.mechanism else units.DASH, width, ink)
    sampled = f", one step of {rank.timed_every} timed" if rank.timed_every > 1 else ""
    why = "no collective so far" if rank.communicated is False else "collectives are not hooked in this process"
    seen = f"{units.DASH} ({why})"
    yield from _fact("seen by", f"{rank.mechanism}{sampled}" if rank.mechanism else seen, width, ink)
    if frame.history is not None:
        yield from latency_rows([each.step for each in frame.history.steps.of(rank.rank)], width, ink)


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
    well = "none: it is seen from outside" if rank.known_by == OUTSIDE else "no fault"
    yield from _fact("agent", errors or well, width, ink, "level-error" if fault else "value")
    elsewhere = f"on {rank.host or 'another host'}" if rank.far else "to the terminal that started it"
    yield from _fact("log", elsewhere if rank.far else clean(rank.log or "") or elsewhere, width, ink)


LABEL: Final = 24
"""Cells before a curve: its name, its last value, its least and largest."""
MOST_BUCKETS: Final = 12
_BINS: Final = 24
_ENOUGH: Final = 120
_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_OUTLIER: Final = 1.5
"""Where the largest value is so many times what 98 of 100 stay below, the curve is cut there."""
_LEAST_SPAN: Final = 0.4
"""A curve of times spans at least this share of its middle."""


def history_rows(frame: Frame, rank: int, width: int, ink: Ink, *, height: int = 1) -> list[Row]:
    """Return the course of each number of a rank, `height` lines each; none where nothing is held."""
    if frame.history is None or width < LABEL + 8:
        return []
    by_time = frame.history.by_time
    at = frame.at if frame.ended_at is None else frame.ended_at
    columns = min(width - LABEL - 1, by_time.columns)
    # A few minutes where they do not fit as seconds.
    level = 0 if columns >= _ENOUGH or at - (frame.started_at or at) <= columns else 1
    last = by_time.bucket(level, at)
    if not by_time.knows(level, last):
        last -= 1
    rows: list[Row] = []
    for metric in METRICS.values():
        values = [
            None if math.isnan(value) else value
            for value in by_time.window(metric.name, level, last, columns, rank)[0].tolist()
        ]
        rows += _course(metric, values, last, columns, height, ink)
    ends = f"-{units.duration(columns * WIDTHS_S[level])}", "now" if frame.ended_at is None else "end"
    first, newest = (Segment(text, ink["label"]) for text in ends)
    return [*rows, [Segment(" " * LABEL), *spread([first], [newest], columns)]]


def _course(
    metric: Metric, values: Sequence[float | None], last: int, columns: int, height: int, ink: Ink
) -> list[Row]:
    hue = f"phase-{metric.name}" if metric.name in LETTERS else "history"
    known = sorted(value for value in values if value is not None and math.isfinite(value))
    latest = next((value for value in reversed(values) if value is not None), None)
    text = units.DASH if latest is None else metric.text(latest).strip()
    curve = sparkline(values, last, columns, ink, height, hue, _ends(metric, known))
    name = metric.name if metric.name != "own" else "own time"
    labels: list[Row] = [
        [Segment(f"  {name:<10}", ink["label"]), Segment(f"{text:>10}  ", ink["faint" if latest is None else "value"])]
    ]
    if height > 1:
        ends = f"{metric.text(known[0]).strip()} … {metric.text(known[-1]).strip()}" if known else ""
        labels.append([Segment(units.fit(ends.rjust(LABEL - 2), LABEL - 2) + "  ", ink["faint"])])
    labels += [[Segment(" " * LABEL)]] * (height - len(labels))
    return [[*label, *row] for label, row in zip(labels, curve, strict=True)]


def _ends(metric: Metric, known: Sequence[float]) -> tuple[float, float] | None:
    """Return the values at the bottom and the top of a curve, so that noise looks calm and a hiccup hides nothing."""
    if not known:
        return None
    low, usual, high = known[0], known[(len(known) - 1) * 98 // 100], known[-1]
    if high > _OUTLIER * usual > 0:
        high = usual
    middle = (low + high) / 2
    least = _LEAST_SPAN * middle / 2 if metric.unit == "ms" else 0.0
    return min(low, middle - least), max(high, middle + least)


def latency_rows(steps: Sequence[Step], width: int, ink: Ink) -> list[Row]:
    """Return a histogram of the durations of each all-reduce of a step over many steps, on a common scale.

    The k-th all-reduce of a step is DDP's k-th bucket; those that the last step had are shown.
    """
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    newest: list[tuple[int, int]] = []
    for step in steps:
        calls = [call for call in step.collectives if call.op.startswith("all_reduce")]
        timed = [(index, call) for index, call in enumerate(calls) if call.duration_ns]
        for index, call in timed:
            found[index, call.bytes].append((call.duration_ns or 0) / 1e6)
        if timed:
            newest = [(index, call.bytes) for index, call in timed]
    if not newest:
        return []
    shown = newest[:MOST_BUCKETS]
    low = min(min(found[key]) for key in shown)
    high = max(max(found[key]) for key in shown)
    bins = max(4, min(_BINS, width - 39))
    heading = f"  {'bucket':<7}{'size':>8}  {'p50':>6} {'p99':>6} ms"
    scale = f"{units.short_milliseconds(low).strip()} ms".ljust(bins - 8) + f"{units.short_milliseconds(high)} ms"
    rows: list[Row] = [[Segment(heading, ink["label"]), Segment(f"   {scale}", ink["label"])]]
    for index, size in shown:
        values = sorted(found[index, size])
        middle, late = (units.milliseconds(values[(len(values) - 1) * share // 100]) for share in (50, 99))
        text = f"  {index:<7}{units.size(size):>8}  {middle} {late}      "
        rows.append([Segment(text, ink["value"]), Segment(_histogram(values, low, high, bins), ink["phase-wait"])])
    if len(newest) > len(shown):
        rows.append([Segment(f"  and {len(newest) - len(shown)} more", ink["label"])])
    return rows


def _histogram(values: Sequence[float], low: float, high: float, bins: int) -> str:
    """Return the counts in bins of equal ratio, each as a column of eighths; one that is not empty has at least one."""
    counts = [0] * bins
    ratio = math.log(high / low) if high > low > 0 else 0.0
    for value in values:
        place = math.log(value / low) / ratio if ratio else 0.5
        counts[min(bins - 1, int(place * bins))] += 1
    most = max(counts)
    return "".join(_EIGHTHS[math.ceil(count / most * 8)] for count in counts)
