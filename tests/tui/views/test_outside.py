"""A run that nobody prepared on every screen and in every verb: what looks show with its error, a dash for the rest."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace
from support.screens.dashboards import INK, KEYS, seen, settled, still_app, text_of
from support.screens.frames import LOOKS, outside_frame, outside_rank

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire import Verdict
from ddptop.agent.wire.frames import ByLooks
from ddptop.tui.cli.output import plain, status
from ddptop.tui.cli.output.card import card
from ddptop.tui.drawing.lines import width_of
from ddptop.tui.model.sentences import can_be_joined
from ddptop.tui.screens.rank import fact_rows
from ddptop.tui.views.panels import Shape, draw_panel
from ddptop.tui.views.screen.header import header_rows

HOLDS = "rank 1 holds the group back: it waits 3%, the others 38% (± 4): forward pass"
SLOW = Verdict(
    1, "slow_rank", f"{HOLDS} · train.py:31 slow", 0, rank=1, phase="forward", share=0.35, line="train.py:31 slow",
)  # fmt: skip
NO_PY_SPY = ByLooks({}, {}, problem="no stack: py-spy is not installed; pip install 'ddptop[stacks]'")


def header(frame: Frame, width: int) -> list[str]:
    """Return the lines of the header."""
    return [text_of(row).rstrip() for row in header_rows(frame, width, INK, KEYS, roomy=False)]


def panel(rank: int = 0, height: int = 10, **changes: Any) -> list[str]:
    """Return the lines of a panel."""
    frame = outside_frame()
    return [text_of(row) for row in draw_panel(outside_rank(rank, **changes), frame, Shape(50, height, False), INK)]


@pytest.mark.parametrize("width", [78, 118])
def test_the_header_says_how_it_is_known_how_sure_it_is_and_what_to_do(width: int) -> None:
    """Nothing is cut off, at 80 and at 120 columns; no number is 0 that is not known."""
    lines = header(outside_frame(), width)
    assert all(width_of([*row]) <= width for row in header_rows(outside_frame(), width, INK, KEYS, roomy=False))
    assert re.match(r"by looks ± 2  df+b+o+w+· +forward +39% +backward +26% +wait +20%", lines[1])
    assert lines[2] == "no slow rank (one that waits 15 points less would be named)"
    assert lines[3] == "steps not known, seen from outside · next time: … -m ddptop.agent train.py"
    joinable = outside_frame(ranks=tuple(outside_rank(rank, python_version="3.14") for rank in range(2)))
    assert header(joinable, width)[3] == "steps not known, seen from outside · J joins (Python 3.14)"
    assert can_be_joined(joinable)
    assert not can_be_joined(outside_frame())


def test_a_slow_rank_is_in_the_header_in_its_panel_and_in_the_table() -> None:
    """The phase that it is blamed for stands out in its row."""
    frame = outside_frame(verdicts=(SLOW,), named_from_share=None)
    assert HOLDS in header(frame, 78)
    top = text_of(draw_panel(frame.ranks[1], frame, Shape(50, 9, False), INK)[0])
    assert "◀ slow" in top


def test_a_panel_has_the_parts_of_the_time_and_the_line() -> None:
    """And the cost of the looks; a rank that stands says where."""
    text = "\n".join(panel())
    assert "by looks ± 3" in text
    assert "45% at train.py:40 main" in text
    assert "214 looks at 2.1% of a core" in text
    assert re.search(r"wait +38%", text)
    assert "step" not in text
    assert "loss" not in text
    still = replace(LOOKS[0], still_s=12.0, still_at="train.py:40 main, in backward")
    assert "still 12 s: train.py:40 main, in backward" in "\n".join(panel(by_looks=still))


def test_what_the_log_names_is_marked_as_such() -> None:
    """Steps and loss that a pattern has found are not those of an agent."""
    rank = outside_rank(0, step=1284, loss=0.8764, from_log=True)
    frame = outside_frame(step=1284, total_steps=4000, total_by="its log", loss=0.8764, from_log=True)
    assert "step 1,284 by its log" in panel(step=1284, loss=0.8764, from_log=True)[0]
    assert header(frame, 78)[1].startswith("step 1,284/4,000 by its log  32%  loss 0.8764  by looks ± 2  df")
    assert header(frame, 78)[3].startswith("steps by log, seen from outside · ")
    facts = "\n".join(text_of(row) for row in fact_rows(rank, frame, 60, INK))
    assert re.search(r"step +1,284, by its log", facts)


def test_without_looks_their_reason_is_said_and_no_part_is_zero() -> None:
    """The line that installs what is missing is in the header and in `status`."""
    frame = outside_frame(by_looks=NO_PY_SPY, ranks=tuple(outside_rank(rank, by_looks=NO_PY_SPY) for rank in range(2)))
    assert header(frame, 78)[2] == NO_PY_SPY.problem
    assert "0%" not in "\n".join(line for line in panel(by_looks=NO_PY_SPY) if "cpu" not in line)
    assert "\n".join(card(frame)).count(NO_PY_SPY.problem) == 1


async def test_views_of_steps_say_why_they_are_empty() -> None:
    """Heatmap, timeline and plot, each in one line; what to do stands in the header once."""
    app = still_app(outside_frame())
    async with app.run_test(size=(120, 40)) as pilot:
        for key in "34":
            await settled(pilot, key)
            assert "no step is seen from outside" in seen(app)
            assert seen(app).count("-m ddptop.agent") == 1
        await settled(pilot, "2")
        assert re.search(r"wait +oth.* at\b", seen(app))
        assert "45% at train.py:40 main" in seen(app)


def test_status_and_lines_say_the_same() -> None:
    """`status`, `watch --plain` and `--json`."""
    frame = outside_frame(verdicts=(SLOW,), named_from_share=None)
    lines = card(frame)
    assert SLOW.text in lines
    assert "steps not known, seen from outside · next time: … -m ddptop.agent train.py" in lines
    (looks,) = [line for line in lines if line.startswith("by looks")]
    assert re.fullmatch(
        r"by looks \(± 2\): forward (39|40)%, backward 26%, wait 20%, optimizer 6%, other 4%, data 4%", looks
    )
    assert any(re.search(r"AT +MEMORY +PID", line) for line in lines)
    assert any(re.search(r"1 +running +– +– .* 3% .*38% at train.py:31 slow", line) for line in lines)
    told = plain.line(frame)
    assert told.startswith(f"steps not known  {looks}")
    assert SLOW.text in told
    made = json.loads(status.encoded(status.as_json(frame)))
    assert made["known_by"] == made["ranks"][0]["known_by"] == "outside"
    assert (made["step"], made["ranks"][0]["step"], made["ranks"][0]["phases_ms"]["wait"]) == (None, None, None)
    assert made["ranks"][1]["by_looks"]["shares"]["forward"] == 0.57
    assert made["ranks"][1]["by_looks"]["errors"]["forward"] == 0.034


async def test_a_key_that_takes_an_agent_says_what_there_is_without_one() -> None:
    """A freeze in the place of a pause; and where the Python of the ranks allows it, the key that has one join."""
    joinable = outside_frame(ranks=tuple(outside_rank(rank, python_version="3.14") for rank in range(2)))
    for frame, more in ((outside_frame(), ""), (joinable, "; J has one join them")):
        app = still_app(frame)
        async with app.run_test(size=(120, 40), notifications=True) as pilot:
            await pilot.press("M", "space")
            said = [each.message for each in app._notifications]
        none = "does nothing: nobody prepared this job, so no agent in its ranks can do that"
        assert said == [f"M {none}{more}", f"space {none}; F freezes it"]
