"""The page on a run: one file that loads nothing, in which whatever a run says of itself stays text."""

from __future__ import annotations

import dataclasses
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec.structs import replace
from support.harness import ddptop
from support.screens.frames import EVIL, NOW, frame
from support.values.reports import HANG, REPORT, RUN

from ddptop.agent import wire
from ddptop.agent.client.comparison.compared import Comparison, Number
from ddptop.agent.client.comparison.statistics import Estimate
from ddptop.agent.client.history.columns import Columns
from ddptop.agent.record import recording
from ddptop.agent.run import rundir
from ddptop.agent.run.files import masking
from ddptop.agent.wire.frames import Restart
from ddptop.tui.cli.output.html import plots
from ddptop.tui.cli.output.html.page import rendered
from ddptop.tui.cli.output.html.plots import HEIGHT, Plot

HOSTILE = f'<script src="http://evil/x.js"></script><img src=x onerror=alert(1)>"\'>{{{{ 7 * 7 }}}}{EVIL}'
SLOW = wire.Verdict(
    2, "slow_rank", "rank 1 holds the others back", int((NOW - 60) * 1e9), until_at_ns=int((NOW - 30) * 1e9),
    rank=1, line="model.py:212 attend",
)  # fmt: skip


NOTHING = masking.Mask(Path("/nonexistent"), RUN)


def columns(table: np.ndarray) -> Columns:
    """Return a number of some ranks, a step each column, one a second until now."""
    count = table.shape[1]
    at = np.tile(NOW - count + np.arange(1.0, count + 1), (len(table), 1))
    return Columns(np.arange(1.0, count + 1), at, table, table - 1, table + 1, np.ones(table.shape))


def numbers(world: int = 4, **changes: Columns) -> dict[str, Columns]:
    """Return the numbers of a run of a hundred steps."""
    even = columns(np.full((world, 100), 20.0))
    names = ("data", "forward", "backward", "optimizer", "wait")
    return {
        **dict.fromkeys(names, even), "step": columns(np.full((world, 100), 100.0)), "loss": even,
        "memory": columns(np.full((world, 100), 3.0 * 2**30)), **changes,
    }  # fmt: skip


class Read(HTMLParser):
    """What a browser would make of a page: its elements, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(*happened: wire.Event | wire.Verdict, comparison: Comparison | None = None, **changes: Any) -> Read:
    """Return the page on a run that has failed."""
    usual: dict[str, Any] = {"frame": frame("failed"), "record": RUN, "report": REPORT, "numbers": numbers()}
    usual["mask"] = NOTHING
    return Read(rendered(happened=happened, comparison=comparison, **{**usual, **changes}))


def test_the_story_the_end_and_the_numbers_are_there() -> None:
    """Each verdict with its line of code and how long it stood; stack, last output, and what to do."""
    page = shown(wire.Event(int(NOW * 1e9), "launched", who="ada (shell)"), SLOW, HANG)
    for text in (
        "rank 1 was killed by SIGKILL", "Smaller batches", "KeyError: 1", "epoch 1", "toy.py --key '***'", "torch 2.15",
        "rank 1 holds the others back", "model.py:212 attend · for 30 s", "launched", "by ada (shell)",
        "all_reduce 4 MB, group 0, rank 0", "toy.py:3 main", "100 ms", "80 ms", "Phases of a step",
    ):  # fmt: skip
        assert text in page.text
    assert len([tag for tag, given in page.tags if tag == "path" and "line" in (given["class"] or "")]) == 4 + 1 + 4
    marks = [given for tag, given in page.tags if tag == "rect" and "mark-" in (given["class"] or "")]
    assert [each["class"] for each in marks] == ["mark-warning", "mark-error"]


def test_nothing_that_a_run_says_becomes_markup() -> None:
    """Its name, program, hosts, events, verdicts, output, variables; and the page loads nothing from anywhere."""
    hostile = frame("failed", run=HOSTILE, program=HOSTILE, cause=HOSTILE, note=HOSTILE, placement=HOSTILE)
    rank = replace(hostile.ranks[0], host=HOSTILE, ended=HOSTILE, health=HOSTILE, state=HOSTILE[:12])
    hostile = replace(hostile, ranks=(rank, *hostile.ranks[1:]))
    first = dataclasses.replace(REPORT.ranks[1], output=(HOSTILE, "</pre><b>"), told=HOSTILE, where=HOSTILE)
    report = dataclasses.replace(
        REPORT, run=HOSTILE, cause=HOSTILE, stack=(HOSTILE,), first=first, ranks=(first,), collateral=HOSTILE,
        versions={HOSTILE: HOSTILE}, launched_as=HOSTILE,
    )  # fmt: skip
    record = replace(RUN, cwd=HOSTILE, environment={"A": HOSTILE})
    event = wire.Event(int(NOW * 1e9), HOSTILE, 1, "warning", who=HOSTILE)
    verdict = replace(SLOW, text=HOSTILE, line=HOSTILE, cause=HOSTILE)
    number = Number("step", HOSTILE, "ms", Estimate(20.0, 1.0, 10.0), None, note=HOSTILE)
    comparison = Comparison(
        HOSTILE,
        HOSTILE,
        "",
        ((HOSTILE, HOSTILE, HOSTILE),),
        ((HOSTILE, (HOSTILE,)),),
        (1, 1),
        (number,),
        "same",
        HOSTILE,
    )
    page = shown(event, verdict, frame=hostile, report=report, record=record, comparison=comparison)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "bold", "iframe", "link", "a", "object"}
    names = {name for _, given in page.tags for name in given}
    assert not {name for name in names if name.startswith("on") or name in ("src", "href")}
    assert "{{ 7 * 7 }}" in page.text
    assert page.text.count("<script src=") > 15
    policy = next(given for tag, given in page.tags if given.get("http-equiv"))
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_no_secret_of_the_run_is_on_the_page(tmp_path: Path) -> None:
    """Wherever it stands: the page is put where others read it."""
    secret = 's3cr3t "value"'
    record = replace(RUN, arguments=("--key", secret))
    masking.store(tmp_path, record)
    rank = replace(frame("failed").ranks[0], ended=secret)
    said = frame("failed", cause=secret, note=f"it says {secret}")
    said = replace(said, ranks=(rank, *said.ranks[1:]))
    report, mask = dataclasses.replace(REPORT, cause=secret), masking.Mask(tmp_path, masking.masked(record))
    event = wire.Event(int(NOW * 1e9), secret)
    page = shown(event, replace(SLOW, line=secret), frame=said, report=report, record=record, mask=mask)
    assert "s3cr3t" not in page.text
    assert page.text.count("***") >= 4


def test_each_plot_is_whole_and_within_its_frame() -> None:
    """As an XML parser of Python reads it: no number of a path is unknown, or outside."""
    wild = np.full((3, 100), 20.0)
    wild[0, 50] = 1e9
    wild[1, 20:60] = np.nan
    wild[2, 70:] = np.inf
    each = columns(wild)
    seen = rendered(
        frame("failed", 3, restarts=(Restart(1, NOW, 50),)),
        RUN,
        REPORT,
        [SLOW],
        numbers(3, step=each, loss=each, memory=each),
        NOTHING,
    )
    drawn = re.findall(r"<svg.*?</svg>", seen, re.DOTALL)
    assert len(drawn) == 4 + 3
    for svg in drawn:
        root = ElementTree.fromstring(svg)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for path in root.iter("path"):
            found = re.findall(r"([\d.e+-]+) ([\d.e+-]+)", path.attrib["d"])
            assert all(0 <= float(x) <= width and 0 <= float(y) <= height for x, y in found)
    assert "not finite from step 71 on" in seen
    assert "cut at the top: up to 1,000,000,000 ms" in seen
    assert "restarted as a whole after step 50" in seen
    losses = np.tile(2.2 + np.arange(100) / 1e4, (3, 1))
    losses[0, 50] = 4.4123
    seen = rendered(frame("failed", 3), RUN, REPORT, [SLOW], numbers(3, step=each, loss=columns(losses)), NOTHING)
    assert re.search(r"cut at the top: up to 5.41\b", seen)


def path_of(plot: Plot) -> str:
    """Return the last path that was drawn."""
    return plot.shapes[-1][1]


def test_a_curve_is_interrupted_where_nothing_is_known() -> None:
    """Not where every second step is recorded; a value alone is a point."""
    steps = np.arange(1.0, 41)
    values = np.ones(40)
    values[1::2] = np.nan
    plot = Plot("", "", steps, np.array([0.0, 2.0]))
    plot.line(values, "hue-0", "")
    assert path_of(plot).count("M") == 1
    values[5:35] = np.nan
    plot.line(values, "hue-0", "")
    assert path_of(plot).count("M") == 2
    values[:] = np.nan
    plot.line(values, "hue-0", "")
    assert path_of(plot) == ""
    plot.band(values, values, "hue-0", "")
    assert path_of(plot) == ""
    values[7] = 1.0
    plot.line(values, "hue-0", "")
    assert re.fullmatch(r"M[\d.]+ [\d.]+h0", path_of(plot))


def test_an_axis_has_room_for_nearly_all() -> None:
    """One long step flattens no other; a loss that falls by decades is drawn by decades."""
    steps = np.arange(1.0, 1001)
    times = np.full((1, 1000), 100.0)
    times[0, 3] = 60_000
    assert Plot("", "", steps, times, from_zero=True).high < 200
    plot = Plot("", "", steps, np.geomspace(100, 0.01, 1000)[None])
    middle = plot.y(1.0) - (plot.y(100.0) + plot.y(0.01)) / 2
    assert abs(middle) < HEIGHT / 50
    assert Plot("", "", steps, np.full((1, 1000), np.nan), from_zero=True).high == pytest.approx(1.08)
    assert plots.bar([("a", 1.0), ("b", float("nan")), ("c", 3.0)], 100, 4.0) == [(0.0, 25.0, "a"), (25.0, 75.0, "c")]


def test_a_large_group_is_shown_by_its_range_and_its_odd_ranks() -> None:
    """The rank that takes longest has a line and a row; the others are folded away, and counted beyond that."""
    world = 1000
    step = np.full((world, 100), 100.0)
    step[777] += 50
    page = shown(frame=frame("finished", world), numbers=numbers(world, step=columns(step)))
    assert "median and range of 1,000 ranks" in page.text
    assert "rank 777, the most" in page.text
    before = page.text[: page.text.index("other ranks, which take less time")]
    assert "\n777" in before
    assert "150 ms" in before
    assert "and 472 more" in page.text


def test_much_that_happened_is_cut_by_what_matters_least() -> None:
    """Verdicts and warnings stay; how much is left out is said."""
    events = [wire.Event(int(NOW * 1e9) + number, f"event {number}") for number in range(600)]
    page = shown(SLOW, *events, wire.Event(int(NOW * 1e9) + 700, "the last"))
    assert "102 lines are left out" in page.text
    assert "rank 1 holds the others back" in page.text
    assert "event 102" in page.text
    assert "event 101" not in page.text


@pytest.mark.parametrize("damaged", [False, True])
def test_a_recorded_run_gets_a_page(damaged: bool, own_base: Path, tmp_path: Path) -> None:
    """Also one whose recording is damaged, of which a line says so; where it cannot be written nothing is left."""
    record = rundir.Run(
        "r", "r", "toy.py", (), 1, "gloo", "cpu", time.time_ns() - 10**9, True, state="failed",
        cause="rank 0: ValueError: bad lr", cause_rank=0, ended_at_ns=time.time_ns(),
    )  # fmt: skip
    directory = rundir.create(record)
    recording.open_file(directory.database).close()
    if damaged:
        directory.database.write_bytes(b"\xff" * 4096)
    file = tmp_path / "report.html"
    done = ddptop("report", "r", "--html", str(file))
    assert (done.returncode, done.stdout) == (0, f"{file}\n")
    assert bool(done.stderr) == damaged or "older ddptop" in done.stderr
    page = Read(file.read_text())
    assert "rank 0: ValueError: bad lr" in page.text
    for folder in ("", ".", "/", str(tmp_path)):
        refused = ddptop("report", "r", "--html", folder)
        assert (refused.returncode, refused.stderr) == (2, f"ddptop: {Path(folder)}: Is a directory\n")
    refused = ddptop("report", "r", "--html", str(tmp_path / "none" / "report.html"))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
