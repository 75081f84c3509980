"""What is written of the program is what the program is: `python tests/readme.py --text` makes most of it so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import readme
from support.screens.frames import hung_frame

from ddptop.agent.client.diagnosis.stacks import Stacks
from ddptop.agent.wire import Board, DeviceMemory, Event, Facts, Inspection, MemoryUse, ObjectKind, Resident
from ddptop.agent.wire.diagnoses.kept import Censused, Difference, Kept, RankMemory, Summary
from ddptop.agent.wire.diagnoses.probed import Connection, Probe, Rank
from ddptop.tui.cli.output import status
from ddptop.tui.cli.output.stacks import as_json as stacks_json
from ddptop.tui.model import documented
from ddptop.tui.model.diagnosis import memory, probe, profile


@pytest.mark.parametrize("part", readme.TEXT, ids=lambda part: part.mark)
def test_a_page_is_not_behind(part: readme.Part) -> None:
    """Keys, options and settings are those of the program."""
    assert part.filled() == part.file.read_text(), "run: python tests/readme.py --text"


def test_every_field_of_the_json_is_told() -> None:
    """The tables of the page name each field that there is, and none that there is not."""
    page = (readme.MANUAL / "json.md").read_text()
    shown = hung_frame()
    run = status.as_json(shown)
    (verdict,) = shown.verdicts
    interval = documented.interval_json(verdict)
    event = documented.event_json(Event(1, "text"))
    stacks = stacks_json(shown, Stacks(1.0, (Inspection(0, 1, "agent", 1),)))
    for above, fields in (
        ("## `ddptop ps --json`", status.run_json(shown)),
        ("## `ddptop events RUN --json`", event),
        ("It has these fields besides:", interval.keys() - event),
        ("## `ddptop status RUN --json`", run),
        ("### `hosts`", run["hosts"][0]),
        ("### `ranks`", run["ranks"][0]),
        ("### `verdict`", run["verdict"]),
        ("### `hang`", run["verdict"]["hang"]),
        ("## `ddptop stacks RUN --json`", stacks),
        # The page tells in the same table what is in `threads`.
        ("Of each rank:", {*stacks["ranks"][0], "frames", "threads_left_out"}),
    ):
        assert _fields_told(page, above) == set(fields), above


def test_every_field_of_a_diagnosis_is_told() -> None:
    """Likewise of the JSON of `profile`, `probe` and `memory`."""
    page = (readme.MANUAL / "json.md").read_text()
    sort = Difference("aten::sort", 18.0, 0.4, 17.6, 12.0, 12.0, [], [])
    summary = Summary("r", (5, 7), [0, 2], 2, 0, 1.5e9, [], [sort], 0)
    profiled = profile.as_json(Kept("0001", Path("trace"), 1, summary))
    rank = Rank(0, facts=Facts(0.5, board=Board()))
    probed = probe.as_json(
        Kept("0001", Path("file"), 1, Probe("r", 5, 1.5e9, ranks=[rank], connections=[Connection(0, 1, 1, [], [])]))
    )
    use = MemoryUse(
        5, 7, (ObjectKind("object", "dict"),), resident=Resident(1, 1, 1), devices=(DeviceMemory("", 1, 1),)
    )
    counted = memory.as_json(Kept("0001", Path(), 1, Censused("r", 1.5e9, 1, (RankMemory(0, "", "", use),))))
    for above, fields in (
        ("## `ddptop profile RUN --json`", profiled),
        ("Of each operator:", profiled["operators"][0]),
        ("## `ddptop probe RUN --json`", probed),
        ("Of each rank that was probed:", probed["ranks"][0]),
        ("Of each direction between two ranks:", probed["connections"][0]),
        ("The circumstances:", probed["ranks"][0]["facts"]),
        ("## `ddptop memory RUN --json`", counted),
        ("Of each rank whose memory was looked at:", counted["ranks"][0]),
        ("Of each kind:", counted["ranks"][0]["kinds"][0]),
    ):
        assert _fields_told(page, above) == set(fields), above
    for row, fields in (
        ("board", probed["ranks"][0]["facts"]["board"]),
        ("resident", counted["ranks"][0]["resident"]),
        ("devices", counted["ranks"][0]["devices"][0]),
    ):
        (told,) = re.findall(rf"^\| `{row}` \| (.*) \|$", page, re.MULTILINE)
        # How much more there is of each is told in one word.
        assert set(re.findall("`(\\w+)`", told)) == {field for field in fields if not field.endswith("_grown")}, row


def _fields_told(page: str, above: str) -> set[str]:
    """Return the fields in the first columns of the first table below a text."""
    table = page[page.index(above) :].partition("| field | |\n|---|---|\n")[2].partition("\n\n")[0]
    return {
        field
        for row in table.splitlines()
        if row.startswith("|")
        for field in re.findall("`([^`]+)`", row.split("|")[1])
    }


def test_the_map_names_files_that_there_are() -> None:
    """Whoever is sent to a file by CONTRIBUTING finds it."""
    text = (readme.ROOT / ".github" / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:agent|tui|trainers|tests|\.ci)/[\w./]*)`", text))
    assert len(named) > 30
    assert {path for path in named if not (readme.ROOT / path).exists()} == set()


def test_the_pictures_are_those_that_are_made() -> None:
    """README shows each picture that the command takes, and none that nothing makes anew."""
    shown = re.findall(r"!\[[^]]+\]\(\.github/(\w+)\.svg\)", (readme.ROOT / "README.md").read_text())
    assert sorted(shown) == sorted(readme.VIEWS)
    assert all((readme.PICTURES / f"{view}.svg").is_file() for view in readme.VIEWS)


def test_the_slow_rank_stands_right_after_the_two_commands() -> None:
    """A newcomer sees what the program is for before he is shown around."""
    parts = re.findall(r"^## (.+)$", (readme.ROOT / "README.md").read_text(), re.MULTILINE)
    assert parts[:3] == ["Two commands", "Find a slow rank", "A tour of five minutes"]
