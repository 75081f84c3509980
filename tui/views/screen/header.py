"""The lines above the panels: the run, its progress, and a message on what matters now."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment

from ddptop.agent.client.frame import Frame
from ddptop.agent.text import plural, ranks_in_spans
from ddptop.agent.wire.frames import ENDED, OUTSIDE, awaited
from ddptop.tui.drawing import units
from ddptop.tui.drawing.bars import gauge, looks_bar
from ddptop.tui.drawing.keynames import keys_of
from ddptop.tui.drawing.lines import Page, Row, figure, packed, spread, width_of
from ddptop.tui.drawing.theme import MARKS, Ink
from ddptop.tui.model.diagnosis import hang
from ddptop.tui.model.sentences import (
    has_report,
    judging,
    lasting,
    not_linked,
    outside,
    recording,
    time_left,
    unheard_hosts,
    unobserved,
    waits_for,
)

if TYPE_CHECKING:
    from ddptop.agent.wire import Verdict

_BETWEEN: Final = " · "
"""The sign between the clauses of a message, of which the most important comes first."""
_SINCE: Final = ", since "
"""The beginning of the last words of a verdict."""
_ACTED_ON: Final = frozenset({"killing", "pausing", "paused", "frozen"})
"""States that somebody has brought about: what goes on there comes before a hang."""
_LEGIBLE: Final = 24
"""Cells that a clause needs at least to be shown cut off."""


_SOON_S: Final = 600.0
"""Seconds before the end of the scheduler's time at which it stands out."""


class Typed(NamedTuple):
    """A number of steps that is being typed, while the run is paused."""

    digits: str
    elsewhere: bool = False
    """True where this one digit is the key of a view, too."""


NOTHING_TYPED: Final = Typed("")


class Header(Page, can_focus=False):
    """Run, progress, message and background of a run."""

    def __init__(self, frame: Frame, **options: Any) -> None:
        super().__init__(**options)
        self._frame = frame
        self._typed = NOTHING_TYPED
        self.hint = ""
        """The next key, shown with the next frame; empty where nothing is to be said."""

    def count(self, typed: str, *, elsewhere: bool) -> None:
        """Show the number of steps that is being typed; `elsewhere`: the digit means something else, too."""
        self._typed = Typed(typed, elsewhere)
        self.show(self._frame)

    def show(self, frame: Frame) -> None:
        self._frame = frame
        width = self.container_size.width or self.app.size.width
        roomy = self.app.size.height >= 30
        rows = header_rows(frame, width - 2, self.ink, keys_of(self), self._typed, self.hint, roomy=roomy)
        self.show_rows([[Segment(" "), *row] for row in rows])

    def on_mount(self) -> None:
        """Draw before the first paint."""
        self.show(self._frame)

    def on_resize(self) -> None:
        self.show(self._frame)

    def notify_style_update(self) -> None:
        """Draw in the colors of another theme."""
        super().notify_style_update()
        if self.is_mounted:
            self.show(self._frame)


def header_rows(
    frame: Frame,
    width: int,
    ink: Ink,
    keys: Mapping[str, str],
    typed: Typed = NOTHING_TYPED,
    hint: str = "",
    *,
    roomy: bool,
) -> list[Row]:
    """Return the header, three or four rows; where it is not `roomy` the fourth only if it is needed.

    `keys` has, by the id of an action, the key that does it. A `hint` takes the last row, a fifth if need be, and so
    does the second row of a message; where both are there, the background gives way. A hang is
    shown whole, in two rows if need be, with what can be done in the row below, in the place of all else.
    """
    word, hue = message(frame, keys, typed)
    code = "" if frame.verdict is None else frame.verdict.line
    said: list[Row] = [[Segment(line, ink[hue])] for line in _said(word, width, code)] if word else []
    behind = _background(frame, width, ink, keys)
    rows = [_run(frame, width, ink, keys), _progress(frame, width, ink)]
    stuck = _stuck(frame)
    if stuck is not None and word == stuck.text:
        return rows + _hang(frame, stuck, width, ink, keys, hue)
    if frame.verdict is not None and (frame.held or frame.waiting or frame.state in _ACTED_ON):
        # What was done lasts for moments: a verdict of two rows keeps one, so that nothing below moves.
        said += [[Segment(line, ink["rank-slow"])] for line in _said(frame.verdict.text, width, code)[: -len(said)]]
    rows += said
    if behind and not (hint and len(said) > 1):
        rows.append(behind)
    if hint:
        rows.append([Segment(units.shorten(hint, width), ink["bold brand"])])
    return rows + [[]] * ((4 if roomy else 3) - len(rows))


def _said(text: str, width: int, code: str) -> list[str]:
    """Return a message in one row, or in two where its first clause does not fit into one, or the line of code."""
    before, between, line = text.partition(f"{_BETWEEN}{code}")
    if code and between and cell_len(text) > width:
        return [_clauses(before, width), units.shorten(code + line, width)]
    if cell_len(text.partition(_BETWEEN)[0]) <= width:
        return [_clauses(text, width)]
    first, *more = units.wrapped(text, width)
    return [first, _clauses(" ".join(more), width)]


def _clauses(text: str, width: int) -> str:
    """Return a message in `width` cells; a last clause of which hardly anything would be left is left out whole."""
    while _BETWEEN in text and cell_len(text) > width:
        before = text.rpartition(_BETWEEN)[0]
        if width - cell_len(before) - len(_BETWEEN) >= _LEGIBLE:
            break
        text = before
    before, since, when = text.rpartition(_SINCE)
    room = width - cell_len(when) - len(since)
    if since and cell_len(text) > width and room >= _LEGIBLE:
        # How long it has been so says more than the end of the words before.
        return units.shorten(before, room) + since + when
    return units.shorten(text, width)


def _stuck(frame: Frame) -> Verdict | None:
    """Return the verdict of a run that makes no steps, where nobody has brought that about."""
    return None if frame.state in _ACTED_ON else hang.verdict_of(frame)


def _hang(frame: Frame, verdict: Verdict, width: int, ink: Ink, keys: Mapping[str, str], hue: str) -> list[Row]:
    """Return the rows of a hang, one or two, and what can be done before the timeout."""
    first, *more = units.wrapped(verdict.text, width)
    rows: list[Row] = [[Segment(first, ink[hue])]]
    if more:
        rows.append([Segment(units.shorten(" ".join(more), width), ink[hue])])
    advice = [f"{keys['run.stacks']} shows where each rank stands"]
    if verdict.is_hang:
        advice = [f"{keys['run.stacks']} stacks", f"{keys['run.kill']} kill", hang.remedy(frame)]
    left = hang.countdown(frame, verdict)
    last = [Segment(f"{left}{_BETWEEN}", ink["bold level-warning"])] if left else []
    what = _clauses(_BETWEEN.join(filter(None, advice)), width - width_of(last))
    return [*rows, [*last, Segment(what, ink["value"])]]


def _run(frame: Frame, width: int, ink: Ink, keys: Mapping[str, str]) -> Row:
    # A run that stands is not green, whatever its state.
    hue = ink[f"bold state-{frame.state if frame.standing_s is None else 'stalled'}"]
    state = f"{MARKS[frame.state]} {frame.state.upper()}"
    stuck = _stuck(frame)
    if stuck is not None and stuck.is_hang:
        # In the first words on the screen: who is the cause.
        hue, state = ink["bold level-error"], f"{MARKS['stalled']} {hang.headline(frame)}"
    if frame.all_ended:
        hue, state = ink["bold label"], f"{MARKS['ended']} ENDING"
    clock: Row = []
    if frame.view_held_s is not None:
        # In the place of the clock, which stands still: it must be seen at once, on every screen.
        held = units.duration(frame.view_held_s)
        key = Segment(f"· {keys['view.freeze']} resumes", ink["bold value"])
        clock = [Segment(f" VIEW HELD {held} ", ink["held"]), key]
    elif frame.started_at is not None:
        end = frame.at if frame.ended_at is None else frame.ended_at
        clock = [Segment("up " if frame.ended_at is None else "ran ", ink["label"])]
        clock.append(Segment(units.duration(end - frame.started_at), ink["value"]))
        if limit := time_left(frame):
            short = frame.ends_at is not None and frame.ends_at - frame.at < _SOON_S
            clock.insert(0, Segment(f"{limit}{_BETWEEN}", ink["bold level-warning" if short else "label"]))
    world, ranks = plural(frame.world, "rank").split()
    pieces: list[Row] = [
        [Segment(units.shorten(frame.run, max(8, width // 3)), ink["bold brand"])],
        [Segment(state, hue)],
        clock,
        [Segment(unheard_hosts(frame), ink["bold state-silent"])],
        [Segment(world, ink["value"]), Segment(f" {ranks}", ink["label"])],
        [Segment(f"{len(frame.hosts):,}", ink["value"]), Segment(" hosts", ink["label"])]
        if frame.hosts.several
        else [],
        [Segment(units.shorten(frame.program, max(8, width // 3)), ink["value"])],
        [Segment(frame.backend or "", ink["value"])],
        # The more exact, where ranks have it in common: a group all on `cuda:0` is to be seen as such.
        [Segment(units.shorten(frame.one_device or frame.device or "", max(8, width // 4)), ink["value"])],
        # In the panels only where ranks differ.
        [Segment("on ", ink["label"]), Segment(units.shorten(frame.one_host, max(8, width // 4)), ink["value"])]
        if frame.one_host
        else [],
    ]
    left = packed([piece for piece in pieces if piece is not clock], width - max(12, width_of(clock) + 1))
    return spread(left, clock, width)


def _progress(frame: Frame, width: int, ink: Ink) -> Row:
    if frame.known_by == OUTSIDE and not frame.from_log:
        return packed(_by_looks(frame, width, ink), width)
    label = ink["label"]
    total = frame.total_steps
    step = units.count(frame.step)
    pieces: list[Row] = []
    if total:
        whole = units.count(total)
        share = (frame.step or 0) / total
        steps: Row = [
            Segment("step ", label),
            figure(step.rjust(len(whole)), ink, "bold value"),
            Segment(f"/{whole} " + (f"by {frame.total_by} " if frame.total_by else ""), label),
        ]
        if width >= 100:
            steps += [*gauge(share, 20, ink), Segment(" ")]
        steps.append(figure(units.percent(100 * share if frame.step is not None else None), ink))
        pieces.append(steps)
        if frame.state not in ENDED:
            pieces.append([Segment("ETA ", label), figure(units.duration(frame.eta_s).rjust(5), ink)])
    else:
        pieces.append([Segment("step ", label), figure(step.rjust(7), ink, "bold value")])
    pieces += [
        [Segment(f"counted: {frame.steps_are}", label)] if frame.steps_are else [],
        [figure(units.milliseconds(frame.current_step_ms), ink), Segment(" ms/step", label)],
        [Segment("loss ", label), figure(units.loss(frame.loss, unsure=frame.is_loss_unsure).strip().rjust(6), ink)],
        _rate(frame, ink),
        [] if frame.mfu is None else [Segment("MFU", label), figure(units.share(frame.mfu), ink)],
    ]
    if frame.known_by == OUTSIDE:
        known = [piece for piece in pieces if piece and not any(units.DASH in segment.text for segment in piece)]
        return packed([*known, *_by_looks(frame, width - 40, ink)], width)
    return packed(pieces, width)


def _by_looks(frame: Frame, width: int, ink: Ink) -> list[Row]:
    """Return the time of all ranks by phase, where it is seen from outside: a bar, and the parts from the largest."""
    bar: Row = [Segment("by looks ", ink["label"]), *looks_bar(frame.by_looks, 30 if width >= 100 else 20, ink)]
    shares = {} if frame.by_looks is None else frame.by_looks.shares
    ordered = sorted(shares.items(), key=lambda each: -each[1])
    parts: list[Row] = [
        [Segment(f"{phase} ", ink[f"phase-{phase}"]), figure(units.percent(100 * share), ink)]
        for phase, share in ordered
    ]
    return [bar, *parts]


def _rate(frame: Frame, ink: Ink) -> Row:
    """Return the tokens a second where they are known, else the samples."""
    if frame.tokens_per_s is not None:
        return [figure(units.rate(frame.tokens_per_s), ink), Segment(" tokens/s", ink["label"])]
    return [figure(units.rate(frame.samples_per_s), ink), Segment(" samples/s", ink["label"])]


def message(frame: Frame, keys: Mapping[str, str], typed: Typed = NOTHING_TYPED) -> tuple[str, str]:
    """Return the one thing to know now and what to do about it, and the name of its hue; empty if all is well.

    Args:
        frame: what is shown.
        keys: by the id of an action, the key that does it.
        typed: the number of steps that is being typed, while the run is paused.
    """
    if frame.state in ENDED:
        return _ending(frame, keys), f"bold state-{frame.state}"
    if frame.all_ended:
        # torchrun may start them anew.
        closed = "" if frame.generation < frame.max_restarts else ", their launcher has not noticed yet"
        return _BETWEEN.join(filter(None, (frame.cause, f"all ranks have ended{closed}"))), "bold value"
    if frame.held:
        cancels = f"{keys['run.cancel']} cancels" if frame.waiting else ""
        return _BETWEEN.join(filter(None, (frame.held, cancels))), "bold state-held"
    if frame.waiting:
        text = f"{frame.waiting} · {keys['run.cancel']} cancels · {keys['run.freeze']} freezes"
        return text, "bold state-pausing"
    if frame.ending:
        return f"being ended: {frame.ending} · {keys['run.kill']} shows it", "bold state-killing"
    if frame.orphaned:
        text = f"the launcher is gone, its ranks still run: {keys['run.kill']} ends them"
        return text, "bold level-error"
    if frame.cause is not None and frame.launched:
        return _BETWEEN.join(filter(None, (frame.cause, _after_failure(frame)))), "bold level-error"
    if (stuck := _stuck(frame)) is not None:
        return stuck.text, "bold level-error" if stuck.is_hang else "value"
    if frame.state == "starting":
        return _start(frame, keys["rank.logs"]), "state-starting"
    if frame.state == "killing":
        return "being killed: SIGTERM sent, SIGKILL after the grace period", "state-killing"
    if frame.state == "pausing":
        each = zip(frame.values("state"), frame.values("outstanding"), strict=True)
        behind = {
            rank: calls or 0 for rank, (state, calls) in enumerate(each) if state != "paused" and state not in ENDED
        }
        states = frame.values("state")
        if behind and all(states[rank] == "silent" for rank in behind):
            lost = sorted({host.host for host in frame.hosts if host.is_unheard}) or [ranks_in_spans(sorted(behind))]
            until = f"{', '.join(lost[:3])}{', …' if len(lost) > 3 else ''}"
            return f"paused as far as is heard: ranks stay held until {until} is heard again", "state-pausing"
        text = f"pausing: waiting for {ranks_in_spans(awaited(behind))}" if behind else "pausing"
        return f"{text} · {keys['run.cancel']} cancels · {keys['run.freeze']} freezes", "state-pausing"
    if frame.state == "paused":
        if typed.digits:
            other = f"{keys['run.count_view']} view {typed.digits}" if typed.elsewhere else ""
            parts = (f"{typed.digits}▏ {keys['run.step']} steps", other, f"{keys['run.count_clear']} clears")
            return _BETWEEN.join(filter(None, parts)), "bold state-paused"
        held = f"held at step {units.count(frame.step)}{_since(frame)}: {keys['run.resume']} resumes"
        if not frame.outstanding:
            return f"{held} · no collective open", "bold state-paused"
        under_way = f"{plural(frame.outstanding, 'collective')} open"
        return f"{under_way} · {held}", "bold level-warning"
    if frame.state == "frozen":
        return _frozen(frame, keys["run.resume"]), "bold state-frozen"
    if frame.state == "silent":
        heard = [age for age in frame.values("heard_age_s") if age is not None]
        for_ = f" for {units.age(min(heard)).strip()}" if heard else ""
        what = f"{keys['rank.logs']} shows the log, {keys['run.kill']} ends them"
        return f"no sign of life from any rank{for_}: {what}", "bold state-silent"
    sick = next((index for index, health in enumerate(frame.values("health")) if health is not None), None)
    if sick is not None:
        trouble = f"rank {frame.ranks[sick].rank}: {frame.ranks[sick].health}"
        return _BETWEEN.join(filter(None, (trouble, frame.goes_on))), "bold level-error"
    stands = frame.standing
    if frame.verdict is not None:
        return _BETWEEN.join(filter(None, (stands, frame.verdict.text))), "bold rank-slow"
    if stands or frame.state == "stalled":
        shows = f"{keys['run.stacks']} shows where each rank stands"
        return f"{stands or 'no step'}{_BETWEEN if frame.goes_on else ': '}{shows}", "bold state-stalled"
    if frame.cause is not None:
        return frame.cause, "bold level-error"
    return judging(frame), "label"


def _after_failure(frame: Frame) -> str:
    """Say what becomes of the ranks of a run of which one has failed."""
    if waits := waits_for(frame):
        return waits
    done = frame.restarts[-1].generation if frame.restarts else 0
    if done < frame.max_restarts:
        return "all ranks are being restarted" if frame.world > 1 else "it is being restarted"
    return "the other ranks are being ended" if frame.world > 1 else ""


def _start(frame: Frame, logs: str) -> str:
    if waits := waits_for(frame):
        return f"{waits}: {logs} shows what is printed meanwhile"
    silent = [rank for rank, age in enumerate(frame.values("heard_age_s")) if age is None]
    if len(silent) == len(frame.ranks):
        return f"no rank has reported yet: {logs} shows what they print meanwhile"
    if silent:
        have, which = len(frame.ranks) - len(silent), ranks_in_spans(silent)
        return f"{have} of {len(frame.ranks)} ranks have reported, {which} {'has' if len(silent) == 1 else 'have'} not"
    return f"all ranks are up, no optimizer step yet: {logs} shows what they print"


def _since(frame: Frame) -> str:
    if frame.held_since is None:
        return ""
    at = time.strftime("%H:%M:%S", time.localtime(frame.held_since))
    return f" since {at} ({units.duration(max(0.0, frame.at - frame.held_since)).strip()})"


def _frozen(frame: Frame, key: str) -> str:
    """Say how long a collective under way may still wait: its timeout does not stand still."""
    left = frame.collective_left_s
    if left is None:
        return f"frozen{_since(frame)}; a collective in progress fails after its timeout: {key} resumes it"
    if left <= 0:
        return f"frozen{_since(frame)}; the collective timeout is over, so it may fail: {key} resumes it"
    return f"frozen{_since(frame)}; a collective may fail in {units.duration(left).strip()}: {key} resumes it"


def _ending(frame: Frame, keys: Mapping[str, str]) -> str:
    advice = [f"{keys['app.leave']} leaves", f"{keys['rank.logs']} shows the logs"]
    if has_report(frame):
        advice.insert(0, f"{keys['run.report']} tells why")
    if frame.launched and _had_wrong_arguments(frame):
        # The same ones would fail again.
        advice.append(f"{keys['app.launch']} changes the arguments")
    elif frame.launched:
        advice.append(f"{keys['run.restart']} starts it again")
    if frame.state in ("killed", "stopped") and frame.cause:
        return _BETWEEN.join((frame.cause, *advice))
    if frame.state == "lost":
        said = "ended while no observer watched; how is unknown"
    elif frame.exit_code is None:
        said = frame.state
    else:
        said = f"exit code {frame.exit_code}"
    # The cause comes first: what to do is in the line of keys, too.
    return _BETWEEN.join(filter(None, (frame.cause, said, lasting(frame), *advice)))


def _had_wrong_arguments(frame: Frame) -> bool:
    """Say whether the script refused its arguments: argparse and its like then exit with 2, before any step."""
    culprit = None if frame.cause_rank is None else frame.rank(frame.cause_rank)
    told = culprit.ended if culprit is not None else None
    return not frame.step and (frame.exit_code == 2 or (told or "").partition(":")[0] == "exit code 2")


def _background(frame: Frame, width: int, ink: Ink, keys: Mapping[str, str]) -> Row:
    pieces: list[Row] = []
    if frame.injected:
        pieces.append([Segment(units.shorten(f"injected: {frame.injected}", width), ink["bold level-warning"])])
    if frame.note:
        pieces.append([Segment(units.shorten(frame.note, width), ink["level-warning"])])
    if alone := not_linked(frame):
        pieces.append([Segment(units.shorten(alone, width), ink["level-warning"])])
    if unknown := unobserved(frame, "another one takes over"):
        pieces.append([Segment(unknown, ink["level-warning"])])
    if frame.restarts:
        most = f" of {frame.max_restarts}" if frame.max_restarts else ""
        pieces.append([Segment(f"restarted: {frame.restarts[-1].generation}{most}", ink["level-warning"])])
    if frame.refused:
        text = f"{plural(frame.refused, 'unreadable message')} refused"
        pieces.append([Segment(text, ink["level-warning"])])
    if from_outside := outside(frame, keys["run.join"]):
        pieces.append([Segment(units.shorten(from_outside, width), ink["label"])])
    elif not frame.launched:
        pieces.append([Segment("started by hand", ink["label"])])
    if seldom := recording(frame):
        pieces.append([Segment(seldom, ink["label"])])
    if frame.placement:
        pieces.append([Segment(units.shorten(frame.placement, width), ink["label"])])
    return packed(pieces, width, gap=3)
