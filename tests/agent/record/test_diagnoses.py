"""The diagnoses that are kept with a run: in the order of their numbers, and profiles until they are too many."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.bases import marked

from ddptop.agent.record import diagnoses
from ddptop.agent.run.files import marks
from ddptop.agent.run.rundir import RunDir


def test_the_next_folder_has_the_next_number_however_many_digits_that_has(tmp_path: Path) -> None:
    """The newest comes first; what an observer has left without its file goes, and what it has not made stays."""
    parent = marked(tmp_path) / "probes"
    for name in ("0002", "9998", "notes", "12"):
        (parent / name).mkdir(parents=True)
        (parent / name / "probe.json").touch()
    (parent / "2024").mkdir()
    marks.make(parent / "9999")
    for number in ("10000", "10001"):
        made = diagnoses.new(RunDir(tmp_path), "probe")
        assert made.name == number
        (made / "probe.json").touch()
    assert [each.name for each in diagnoses.folders(parent)] == ["10001", "10000", "9998", "2024", "0002"]
    assert {each.name for each in parent.iterdir()} == {"0002", "9998", "10000", "10001", "2024", "notes", "12"}
    assert diagnoses.folders(tmp_path / "none") == []


def keep(folder: Path, number: int, size: int, *, unasked: bool = False, is_ours: bool = True) -> None:
    """Keep a profile whose trace has so many bytes."""
    own = folder / f"{number:04}"
    if is_ours:
        marks.make(own)
    else:
        own.mkdir()
    (own / "trace.json.gz").write_bytes(b"x" * size)
    said = {"run": "r", "steps": [1, 3], "ranks": [0], "culprit": 0, "peer": None, "at": 1.0, "sentences": []}
    (own / "summary.json").write_text(json.dumps(said | {"operators": [], "left_out": 0, "unasked": unasked}))


@pytest.mark.parametrize(
    ("most", "left"),
    [
        (90, [1, 2, 3, 4, 5, 6]),
        (89, [1, 3, 4, 5, 6]),
        (60, [1, 3, 5, 6]),
        (45, [3, 5, 6]),
        (1, [3, 6]),
    ],
)
def test_the_oldest_that_nobody_has_asked_for_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, left: list[int]
) -> None:
    """Then the oldest ones; never the newest, whatever its size, and never a folder that the observer has not made."""
    monkeypatch.setattr(diagnoses, "MOST_PROFILES", most)
    folder = marked(tmp_path) / "profiles"
    folder.mkdir()
    for number, size in enumerate((15, 15, 15, 15, 10, 20), 1):
        keep(folder, number, size, unasked=number in (2, 4, 6), is_ours=number != 3)
    (folder / "notes").mkdir()
    diagnoses.bound_profiles(RunDir(tmp_path))
    assert sorted(each.name for each in folder.iterdir()) == [*(f"{number:04}" for number in left), "notes"]
