"""Valid messages with the values of an enemy: model, screens and lines stand, and nothing of it gets out raw."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len
from support.screens.dashboards import seen
from support.screens.frames import StillSource, frame_at
from support.values.histories import RecordedHistory
from support.values.hostile import PIECES, cells, marks, structs, texts_in

from ddptop.agent import wire
from ddptop.agent.client.acting import actor
from ddptop.agent.client.frame import Frame
from ddptop.agent.observer.model.store import Store
from ddptop.agent.observer.observer import CleanFormatter
from ddptop.agent.run.rundir import Member, Run
from ddptop.agent.text import clean
from ddptop.agent.wire.frames import LONGEST, STATES, RankFrame
from ddptop.agent.wire.incoming import cleaned
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.cli import main, parsing
from ddptop.tui.cli.output import card, plain, status
from ddptop.tui.cli.verbs import options
from ddptop.tui.drawing import units
from ddptop.tui.model import documented
from ddptop.tui.screens.run import VIEWS

WORLD = 3
NOW = 1_800_000_000.0
KINDS = (wire.Hello, wire.Beat, wire.Steps, wire.Summary, wire.Event)
SIZE = (80, 24)
FAST = settings(
    deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate], database=None
)
"""A seed tells all of a counterexample: to look for a smaller one takes minutes and finds none."""


def _of_the_run(message: Any, rank: int) -> Any:
    """Return a message as one of the run's own ranks would send it, so that it is not refused for its sender."""
    changes: dict[str, Any] = {}
    if hasattr(message, "rank"):
        changes["rank"] = rank
    if isinstance(message, wire.Hello):
        changes["run_id"] = "id"
    if getattr(message, "generation", None) is not None:
        changes["generation"] = min(message.generation, 1)
    return msgspec.structs.replace(message, **changes)


messages = st.lists(
    st.builds(_of_the_run, st.one_of([structs(kind) for kind in KINDS]), st.integers(0, WORLD - 1)),
    min_size=4,
    max_size=14,
)
runs = st.builds(
    lambda run, launched: Run(
        run.run, "id", run.program, run.arguments, WORLD, run.backend, run.device, 1, launched,
        placement=run.placement, injected=run.injected, cause=run.cause, torchrun=run.torchrun, state=run.state,
        exit_code=run.exit_code,
    ),
    structs(Run),
    st.booleans(),
)  # fmt: skip
members = structs(Member)


def told(store: Store, sent: Sequence[Any]) -> None:
    """Have a store take in messages as they come from a socket."""
    for number, message in enumerate(sent):
        store.apply(wire.read_telemetry(wire.encode(message)), NOW + number / 10)


def shown_in(value: Any) -> list[str]:
    """Return every text of a frame, that of its ranks and events included."""
    if isinstance(value, Frame | RankFrame):
        named = (name for name in value.__struct_fields__ if name not in ("history", "log"))
        return [text for name in named for text in shown_in(getattr(value, name))]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [text for each in value for text in shown_in(each)]
    return list(texts_in(value))


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """Return the frame of a run in which ranks, observer and records say what they like."""
    store = Store(cleaned(draw(runs)))
    store.know_members({rank: cleaned(draw(members)) for rank in range(draw(st.integers(0, WORLD)))})
    told(store, draw(messages))
    return replace(frame_at(store, NOW + 2), history=RecordedHistory(WORLD))


@settings(FAST, max_examples=100)
@given(frames())
def test_a_frame_holds_clean_text_and_known_states(frame: Frame) -> None:
    """From any valid messages a frame comes, each state one that the screens know or short, each text clean."""
    assert not set().union(*map(marks, shown_in(frame)))
    assert all(state in STATES or len(state) <= LONGEST for state in (frame.state, *(r.state for r in frame.ranks)))


@settings(FAST, max_examples=40)
@given(frames(), st.lists(structs(wire.Event), max_size=3))
def test_lines_and_json_hold_nothing_that_a_terminal_obeys(frame: Frame, events: list[wire.Event]) -> None:
    """`ps`, `status`, `events`, `--plain` and their JSON print any run, and print it clean."""
    known = [wire.read_telemetry(wire.encode(event)) for event in events]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        print("\n".join([*status.table([frame], NOW), *card.card(frame), plain.line(frame), *plain.summary(frame)]))
        for event in known:
            assert isinstance(event, wire.Event)
            print(status.event_line(event))
            options.print_json(documented.event_json(event))
        options.print_json(status.run_json(frame))
        print(status.encoded(status.as_json(frame)))
    assert not marks(out.getvalue())
    assert json.loads(status.encoded(status.as_json(frame)))["run"] == frame.run


async def _walk(shown: Sequence[Frame]) -> None:
    source = StillSource(shown[0])
    app = DdptopApp(source, clock=lambda: NOW + 2)
    screens = (*((view.key,) for view in VIEWS), ("1", "enter"), ("escape", "g"), ("escape", "k"))
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        for keys in screens:
            await pilot.press(*keys)
            for frame in shown:
                source.current = frame
                await pilot.pause()
                lines = seen(app).split("\n")
                assert app.failure is None, app.failure
                assert not marks("\n".join(lines)), (keys, marks("\n".join(lines)))
                assert {cells(line) for line in lines} == {SIZE[0]}, (
                    keys,
                    [li for li in lines if cells(li) != SIZE[0]],
                )
                assert len(lines) == SIZE[1]


@settings(FAST, max_examples=3)
@given(st.lists(frames(), min_size=3, max_size=4))
def test_every_view_paints_any_frame_within_its_cells(shown: list[Frame]) -> None:
    """At 80 by 24, each line of each view is 80 cells wide and without a sign that a terminal obeys."""
    asyncio.run(_walk(shown))


def test_what_the_shell_says_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    """An option that repeats what was typed, and a complaint that repeats a path, are clean lines."""
    with pytest.raises(SystemExit) as left:
        main._parser().parse_args(["ps", "--x\x1b]0;owned\x07\u202e\x9b2J"])
    assert left.value.code == 2
    assert parsing.complain(OSError(2, "gone", "a\x1b[2J\u202e\nb"), 2) == 2
    said = capsys.readouterr().err
    assert not marks(said)
    assert len(said.splitlines()) == 2


def test_who_acts_is_one_clean_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a user comes from the environment, and goes into the run's events."""
    monkeypatch.setenv("LOGNAME", "ada\x1b[31m\n\u202e" + "x" * 500)
    said = actor.who("shell")
    assert said.startswith("ada x")
    assert not marks(said)
    assert len(said) <= 100


def test_the_log_of_the_observer_is_clean() -> None:
    """What an exception repeats is no command to the terminal of whoever reads the log."""
    formatter = CleanFormatter("%(levelname)s %(message)s")
    try:
        raise ValueError("\x1b[2J\u202eevil")
    except ValueError:
        record = logging.LogRecord("l", logging.ERROR, "f", 1, "kill of %s", ("a\x9b2Jb",), sys.exc_info())
    lines = formatter.format(record).splitlines()
    assert lines[0] == "ERROR kill of ab"
    assert lines[-1] == "ValueError: evil"
    assert not any(map(marks, lines))


def test_every_character_left_in_clean_text_has_cells_of_its_own() -> None:
    """A character of the two planes in use is left out, or takes its East Asian width, for Textual as well."""
    for code in range(0x20000):
        left = clean(f"a{chr(code)}b")[1:-1]
        assert not marks(left), hex(code)
        assert cell_len(left) == cells(left), hex(code)


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.integers(0, 30))
@settings(FAST, max_examples=200)
def test_fitting_text_takes_exactly_its_cells(text: str, width: int) -> None:
    """Wide characters are cut whole and padded; nothing that joins or turns moves what is beside it."""
    known = clean(text)
    assert cells(units.fit(known, width)) == width
    assert cells(units.shorten(known, width)) <= width
