"""What is written of the program is what the program is: `python tests/readme.py --text` makes most of it so."""

from __future__ import annotations

import re

import pytest
import readme
from support.screens.frames import hung_frame

from ddptop.agent.wire import Event, Inspection
from ddptop.tui.cli.output import status
from ddptop.tui.cli.output.stacks import as_json as stacks_json
from ddptop.tui.model.diagnosis.stacks import Stacks


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
    interval = status.interval_json(verdict)
    event = status.event_json(Event(1, "text"))
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


def _fields_told(page: str, above: str) -> set[str]:
    """Return the fields in the first columns of the first table below a text."""
    table = page[page.index(above) :].partition("| field | |\n|---|---|\n")[2].partition("\n\n")[0]
    return {field for row in table.splitlines() for field in re.findall("`([^`]+)`", row.split("|")[1])}


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
