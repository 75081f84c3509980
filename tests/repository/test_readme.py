"""What is written of the program is what the program is: `python tests/readme.py --text` makes most of it so."""

from __future__ import annotations

import re

import pytest
import readme
from support.screens.frames import verdict_frame

from ddptop.tui.cli.output import status


@pytest.mark.parametrize("part", readme.TEXT, ids=lambda part: part.mark)
def test_a_page_is_not_behind(part: readme.Part) -> None:
    """Keys, options and settings are those of the program."""
    assert part.filled() == part.file.read_text(), "run: python tests/readme.py --text"


def test_every_field_of_the_json_is_told() -> None:
    """The page names each field of a run, of its ranks, of a verdict and of the list of runs."""
    page = (readme.MANUAL / "json.md").read_text()
    shown = verdict_frame()
    run = status.as_json(shown)
    assert run["ranks"]
    fields = {*run, *status.run_json(shown), *run["ranks"][0], *(run["verdict"] or ())}
    assert {field for field in fields if f"`{field}`" not in page} == set()


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
    assert parts[:3] == ["Two commands", "Find a slow rank in 60 seconds", "A tour of five minutes"]
