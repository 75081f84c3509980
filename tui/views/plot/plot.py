"""One number of the ranks over the steps of the run, as lines.

Imports NumPy and the plot library, so it is loaded after the first paint. What is shown is in
a `Look`; the keys that change it belong to the screen, those of the crosshair to the placeholder.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
from textual import on
from textual.app import ComposeResult, RenderResult
from textual.binding import BindingType
from textual.containers import Grid
from textual.content import Content
from textual.events import Mount
from textual.geometry import Region
from textual.widgets import Static
from textual_hires_canvas import Canvas
from textual_plot import HiResMode, PlotWidget
from textual_plot.axis_formatter import AxisFormatter
from textual_plot.plot_widget import Legend

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire.frames import ENDED
from ddptop.agent.wire.steps.numbers import CUSTOM
from ddptop.tui.drawing import units
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.theme import Ink, ink
from ddptop.tui.drawing.ticks import LABEL, decades, even_ticks, tick_labels
from ddptop.tui.model.metrics import metric_named
from ddptop.tui.model.sentences import stepless
from ddptop.tui.views.plot.canvas import PlotCanvas
from ddptop.tui.views.plot.contents import Contents, Line, Look, contents_of, span_of
from ddptop.tui.views.plot.extent import Extent, recent

_PERIOD_S: Final = 1.0
"""A curve is drawn at most so often."""
_REST: Final = 100
"""The plot rests so many times as long as a drawing took: at most 1 % of a core, however many ranks there are."""
_FIRST_STEPS: Final = 20
"""Steps without a loss after which the plot says that there is none."""


class Plot(PlotWidget, can_focus=False, inherit_bindings=False):
    """A metric of some ranks; the chosen one lies on top."""

    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, look: Look, **options: Any) -> None:
        super().__init__(allow_pan_and_zoom=False, **options)
        self.look = look
        self.contents: Contents | None = None
        """The contents that are drawn now."""
        self.crosshair: float | None = None
        """The step that is read off, None without a crosshair."""
        self._run: tuple[int, int] | None = None
        """The first and the last step there are."""
        self._given: tuple[Frame, Sequence[int], int | None] | None = None
        self._shown: object = None
        self._seen: object = None
        """The lines that are drawn in dots of the screen, and the ticks."""
        self._next = self._cost = 0.0
        self._ready = False
        self._late = False
        self._was_hidden = False
        """True until the canvas, which was hidden, has been laid out."""
        self._entitled: Content | None = None
        """The title that was shown last."""
        self._fits = False
        """True once it was drawn in the present layout."""
        self._stays = False
        """True while only its lines are drawn anew: all that is around them is as it was."""
        self._x, self._y, self._powers = Steps(), Values(), Powers()
        self.add_class("-empty")
        self.set_reactive(PlotWidget.margin_top, 0)
        self.set_reactive(PlotWidget.margin_bottom, 1)
        self.set_reactive(PlotWidget.margin_left, LABEL + 1)

    def compose(self) -> ComposeResult:
        """Make the library's parts, with canvases of our own, and what stands there without a curve."""
        with Grid():
            for name in ("margin-top", "margin-left", "plot", "margin-bottom"):
                yield PlotCanvas(1, 1, id=name)
        yield Legend(id="legend")
        yield Static(id="nothing")

    def on_mount(self, event: Mount) -> None:  # type: ignore[override]  # textual gives the event to who takes it
        """Draw only after the library has emptied the canvas, as it does when it is mounted."""
        if not self.children:
            # Taken away before its parts had come, by who leaves at that moment: the library would miss them.
            event.prevent_default()
            return
        self.set_x_formatter(self._x)
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        self._ready = True
        self._fit()

    def on_resize(self) -> None:
        """Draw for another size, once the library has laid out its canvas."""
        self.call_after_refresh(self._fit)

    @on(Canvas.Resize)
    def _fit_canvas(self, message: Canvas.Resize) -> None:
        """Draw as soon as a canvas that was hidden has a size; any other follows the size of the plot."""
        if self._was_hidden and message.canvas.id == "plot":
            self._was_hidden = False
            self._fit()

    def _fit(self) -> None:
        # The library takes over the size of its canvas only when a layout is asked for.
        self.refresh(layout=True)
        self._again()

    # When to draw

    def show(self, frame: Frame, ranks: Sequence[int], chosen: int | None) -> None:
        """Draw what is new at most once a second, and at once for another look, rank or size or once all is read."""
        self._given = frame, ranks, chosen
        self.look.follow(frame)
        if not self._ready or not self.size:
            return
        by_step = None if frame.history is None else frame.history.by_step
        look = self.look.metric, self.look.extent, self.crosshair
        whole = by_step is not None and by_step.complete
        key = look, tuple(ranks), chosen, self.size, self.app.theme, frame.view_held_s is None, whole
        key_and_data = key, None if by_step is None else by_step.records, frame.state
        if key_and_data == self._shown or (frame.view_held_s is not None and self._is(key)):
            return
        now = time.monotonic()
        if self._is(key) and now < self._next:
            if not self._late:
                # Nothing may follow this frame, as when the run has ended: it must not be the one left out.
                self._late = True
                self.set_timer(self._next - now, self._catch_up)
            return
        anew = not self._is(key)
        self._shown = key_and_data
        # Not by the clock: on a busy machine a drawing waits for a core, and would then be put off for a minute.
        began = time.thread_time()
        self._draw(frame, ranks, chosen, anew=anew)
        self._cost = time.thread_time() - began
        # Where there is no curve yet, it is drawn as soon as its values come.
        self._next = now + max(_PERIOD_S if self.contents is not None else 0.0, _REST * self._cost)

    def _is(self, key: object) -> bool:
        return isinstance(self._shown, tuple) and self._shown[0] == key

    def _catch_up(self) -> None:
        self._late = False
        self._again()

    def _again(self) -> None:
        if self._given is not None:
            self.show(*self._given)

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Plot:
        """Ask for a painting, but not of the whole plot for new lines in it."""
        if layout:
            self._fits = False
        elif self._stays and not regions:
            return self
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def render(self) -> RenderResult:
        """Draw the lines; the library would ask for a refresh at each cell."""
        began, cpu = time.monotonic(), time.thread_time()
        with ExitStack() as canvases:
            for canvas in self.query(PlotCanvas):
                canvases.enter_context(canvas.redrawn())
            drawn = super().render()
        self._fits = True
        self._next = max(self._next, began + _REST * (self._cost + time.thread_time() - cpu))
        return drawn

    # What to draw

    def _draw(self, frame: Frame, ranks: Sequence[int], chosen: int | None, *, anew: bool) -> None:
        by_step = None if frame.history is None else frame.history.by_step
        self._run = None if by_step is None else span_of(by_step, ranks, frame.upto)
        self.contents = None
        if by_step is not None and self._run is not None:
            self.contents = contents_of(by_step, ranks, chosen, self._run, self.look, self._columns)
        was_empty = self.has_class("-empty")
        self.set_class(self.contents is None, "-empty")
        # A hidden canvas has no size: `_fit_canvas` comes once it has one.
        self._was_hidden = self._was_hidden or (was_empty and self.contents is not None)
        self._stays = self._fits and not anew and not was_empty and self.contents is not None
        try:
            self._draw_contents(frame, ranks, chosen, anew=anew or was_empty)
        finally:
            self._stays = False

    def _draw_contents(self, frame: Frame, ranks: Sequence[int], chosen: int | None, *, anew: bool) -> None:
        self._entitle(self._title(frame, ranks, chosen))
        if self.contents is None:
            self.query_one("#nothing", Static).update(Content(_nothing(frame, self._run, self.look, keys_of(self))))
            return
        self._x.room, self._y.room = max(2, self.size.width // 14), max(2, self.size.height // 3)
        self._powers.room = self._y.room
        seen = self.contents.dots(2 * self._columns, 4 * self.size.height), self._ticks(self.contents)
        # In a long run most steps move nothing by a dot.
        if anew or seen != self._seen:
            self._lines(self.contents)
            if self._stays:
                # At once: asked for it by a painting, the library would have the whole plot painted, and all lines
                # once more.
                self.render()
        self._seen = seen

    @property
    def _columns(self) -> int:
        """Cells of a line of the canvas, without its frame."""
        return max(2, self.size.width - self.margin_left - 2)

    def _entitle(self, title: Content) -> None:
        if self._stays and title == self._entitled:
            return
        self.border_title = title
        self._entitled = title
        if self._stays:
            self.refresh(Region(0, 0, self.outer_size.width, 1).translate(-self.content_offset))

    def _ticks(self, contents: Contents) -> tuple[list[float], list[float]]:
        values = self._powers if contents.log else self._y
        return self._x.get_ticks(contents.steps[0], contents.steps[-1]), values.get_ticks(*contents.limits)

    def _lines(self, contents: Contents) -> None:
        hues = ink(self.app.theme)
        low, high = contents.limits
        self.clear()
        self.set_y_formatter(self._powers if contents.log else self._y)
        self.set_xlimits(float(contents.steps[0]), float(contents.steps[-1]))
        self.set_ylimits(low, high)
        if self.crosshair is not None:
            at = contents.steps[contents.column(self.crosshair)]
            self.plot([at, at], [low, high], line_style=hues.hues["label"], hires_mode=HiResMode.BRAILLE)
        for line in contents.lines:
            values = contents.on_axis(line)
            self.plot(contents.steps, values, line_style=_style(line, hues), hires_mode=HiResMode.BRAILLE)
        if len(contents.broken):
            top = np.full(len(contents.broken), high)
            self.scatter(contents.broken, top, marker="×", marker_style=hues.hues["level-error"])

    # In words

    def _title(self, frame: Frame, ranks: Sequence[int], chosen: int | None) -> Content:
        hues = ink(self.app.theme)
        metric = metric_named(self.look.metric)
        drawn = self.contents
        if drawn is None:
            return Content(f"{metric.title} over {self.look.over}")
        unit = f", {drawn.unit}" if drawn.unit else ""
        if self.crosshair is not None:
            return self._reading(drawn, hues)
        keys = keys_of(self)
        # The colors of the lines before the key: a narrow plot cuts what comes last.
        shown, *key = extent_words(drawn, self.look, self._run, keys).split(" · ")
        parts = [Content(f"{metric.title}{unit} over {shown}")]
        if len(ranks) > 1:
            lines = sorted(drawn.lines, key=lambda line: line.order)
            parts.append(Content(" · ranks " if lines and lines[0].name.isdigit() else " "))
            for line in lines:
                name = f"[{line.name}]" if line.name == str(chosen) else f" {line.name} "
                parts.append(Content.styled(name, _style(line, hues)))
        parts.append(Content(" · ".join(("", *key, *notes(drawn, self.look, frame, self._run, keys)))))
        return Content("").join(parts)

    def _reading(self, drawn: Contents, hues: Ink) -> Content:
        """Return the metric and its values under the crosshair, the line on top first; the keys are in the key bar."""
        assert self.crosshair is not None
        index = drawn.column(self.crosshair)
        moment = "" if np.isnan(drawn.at[index]) else time.strftime(" %H:%M:%S", time.localtime(drawn.at[index]))
        step = Content(f"{self.look.over.removesuffix('s')} {units.count(int(drawn.steps[index]))}")
        values: list[Content] = []
        ranks = sum(line.name.isdigit() for line in drawn.lines)
        for line in sorted(drawn.lines, key=lambda line: (line is not drawn.lines[-1], line.order)):
            # The noun stands once before the ranks: they follow each other.
            noun = ("rank " if ranks == 1 else "" if values else "ranks ") if line.name.isdigit() else ""
            values.append(Content.styled(f" {noun}{line.name}: ", _style(line, hues)))
            values.append(Content.styled(_value(float(line.values[index])), hues.hues["value"]))
        values.append(Content(f" {drawn.unit}" if drawn.unit else ""))
        smoothing = "" if self.look.extent.smoothing == "off" else ", smoothed"
        metric = Content(f"{drawn.metric.title}{smoothing}  ")
        log = Content(" · log" if drawn.log else "")
        forms = (
            [metric, step, Content(moment), *values, log],
            [metric, step, *values, log],
            [metric, step, *values],
        )
        rows = [Content("").join(form) for form in forms]
        return next((row for row in rows if row.cell_length < self.size.width - 2), rows[-1])

    # What is asked

    def zoom(self, factor: float) -> None:
        """Show so many times as many steps."""
        if self._run is not None:
            self._show_extent(self.look.extent.zoomed(factor, *self._run, self.crosshair))

    def scroll_steps(self, by: float) -> None:
        """Move by so many times what is shown."""
        if self._run is not None:
            self._show_extent(self.look.extent.scrolled(by, *self._run))

    def show_other(self) -> None:
        """Show the whole run, or the recent steps again."""
        self._show_extent(self.look.extent.other())

    def change_scale(self) -> None:
        """Change between a logarithmic and a linear scale."""
        self._show_extent(replace(self.look.extent, log=not self.look.extent.log))

    def gather(self) -> None:
        """Show the ranks as one band with their mean, or each as a line."""
        self._show_extent(replace(self.look.extent, band=not self.look.extent.band))

    def smooth(self) -> None:
        """Smooth more; after the strongest, not at all."""
        self._show_extent(self.look.extent.smoother())

    def choose(self, metric: str | None) -> None:
        """Show another metric; None leaves it."""
        if metric is not None:
            self.look.metric, self.look.chosen = metric, True
            self._again()

    def _show_extent(self, extent: Extent) -> None:
        self.look.extent = extent
        self._again()

    def read_at(self, index: int) -> bool:
        """Read a column off; False where there is none."""
        if self.contents is not None:
            self.crosshair = float(self.contents.steps[index])
            self._again()
        return self.contents is not None

    def read_on(self, by: int) -> None:
        """Read a column further on."""
        if self.contents is not None and self.crosshair is not None:
            index = self.contents.column(self.crosshair) + by
            self.read_at(max(0, min(index, len(self.contents.steps) - 1)))

    def read_nothing(self) -> None:
        """Close the crosshair."""
        self.crosshair = None
        self._again()


def _style(line: Line, hues: Ink) -> str:
    return hues.faded(line.hue) if line.faded and line.hue != "faint" else hues.hues[line.hue]


def _value(value: float) -> str:
    if np.isnan(value):
        return units.DASH
    return units.significant(value) if np.isfinite(value) else "not finite"


def extent_words(drawn: Contents, look: Look, run: tuple[int, int] | None, keys: Mapping[str, str]) -> str:
    """Return which steps are shown, and the key that shows the others."""
    every = drawn.shown if run is None else run
    usual = recent(every[1] - every[0] + 1)
    key = keys["plot.whole"]
    if look.extent.whole:
        if usual <= every[1] - every[0]:
            return f"the whole run · {key}: last {units.count(usual)} {look.over}"
        # All steps are recent: the key changes the range alone, and on a logarithmic scale nothing.
        return "the whole run" if look.extent.log else f"the whole run · {key}: clip outliers"
    if drawn.shown == every:
        return look.over
    first, last = map(units.count, drawn.shown)
    count = units.count(drawn.shown[1] - drawn.shown[0] + 1)
    shown = f"the last {count} {look.over}" if look.extent.end is None else f"{look.over} {first}–{last}"
    return f"{shown} · {key}: whole run"


def notes(drawn: Contents, look: Look, frame: Frame, run: tuple[int, int] | None, keys: Mapping[str, str]) -> list[str]:
    """Return the remarks on what is unusual in this plot."""
    notes = []
    least, greatest = drawn.outside
    if least is not None or greatest is not None:
        ends = (("min", least), ("max", greatest))
        notes.append("clipped, " + " ".join(f"{name} {end:.3g}" for name, end in ends if end is not None))
        if run is None or drawn.shown == run:
            # Else the extent names the key.
            notes.append(f"{keys['plot.whole']}: whole range")
    if drawn.log:
        notes.append("log, without 0 and less" if drawn.hidden else "log")
    if look.extent.smoothing != "off":
        notes.append(f"{look.extent.smoothing}ly smoothed")
    if len(drawn.broken):
        notes.append("× not finite")
    if frame.history is not None and not frame.history.by_step.complete:
        notes.append("loading history")
    return notes


def _nothing(frame: Frame, run: tuple[int, int] | None, look: Look, keys: Mapping[str, str]) -> str:
    """Say why there is no curve, and what to do."""
    if from_outside := stepless(frame):
        return from_outside
    by_step = None if frame.history is None else frame.history.by_step
    if by_step is not None and not by_step.complete:
        return "loading history"
    if by_step is not None and by_step.problem:
        return by_step.problem
    if run is None or run[0] == run[1]:
        ended = frame.state in ENDED
        printed = f": {keys['rank.logs']} shows what was printed" if frame.launched else ""
        return f"no step was completed{printed}" if ended else "curves begin with the second step"
    other = f"{keys['plot.metric']} shows another number"
    if look.metric == "loss":
        if run[1] - run[0] < _FIRST_STEPS and frame.state not in ENDED:
            # The first losses may not have been read yet.
            return "curves begin with the second step"
        return f"no loss seen: it is read where backward() is called · {other}"
    if look.metric in ("wait", "all_reduce") and len(frame.ranks) < 2:
        return f"one rank alone waits for nobody · {other}"
    if look.metric in ("wait", "all_reduce"):
        return f"no collectives seen: {keys['ranks.open']} shows how this rank's are seen · {other}"
    if look.metric.startswith(CUSTOM):
        around = f"{keys['plot.back']} and {keys['plot.forward']} scroll, {keys['plot.zoom_out']} shows more"
        return f"not given in these steps: {around} · {other}"
    return f"not known of these steps · {other}"


class Values(AxisFormatter):
    """Ticks at 1, 2 and 5 times a power of ten."""

    def __init__(self) -> None:
        self.room = 5
        """Ticks there is room for."""

    def get_ticks(self, min_: float, max_: float, max_ticks: int = 8) -> list[float]:
        return even_ticks(min_, max_, self.room)

    def get_labels_for_ticks(self, ticks: Sequence[float]) -> list[str]:
        """Return labels as short as may be."""
        return tick_labels(ticks)


class Steps(Values):
    """Ticks at whole steps."""

    def get_ticks(self, min_: float, max_: float, max_ticks: int = 8) -> list[float]:
        return [tick for tick in super().get_ticks(min_, max_, max_ticks) if tick == round(tick)]

    def get_labels_for_ticks(self, ticks: Sequence[float]) -> list[str]:
        """Return them written as everywhere else while they are short enough."""
        return (
            [f"{tick:,.0f}" for tick in ticks] if max(ticks, default=0) < 1e6 else super().get_labels_for_ticks(ticks)
        )


class Powers(Values):
    """Ticks on an axis that shows powers of ten."""

    def get_ticks(self, min_: float, max_: float, max_ticks: int = 8) -> list[float]:
        """Return where the ticks are: the ends of the axis, where no power lies between them."""
        return decades(min_, max_, self.room) or [min_, max_]

    def get_labels_for_ticks(self, ticks: Sequence[float]) -> list[str]:
        """Return the numbers that the powers stand for."""
        return [units.significant(10**tick) if -5 < tick < 5 else f"{10**tick:.1e}" for tick in ticks]
