"""The profiles that are kept with a run: which of them go once they are too many."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.bases import marked

from ddptop.agent.record.profiles import kept
from ddptop.agent.run.files import marks


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
    monkeypatch.setattr(kept, "MOST_BYTES", most)
    folder = marked(tmp_path) / "profiles"
    folder.mkdir()
    for number, size in enumerate((15, 15, 15, 15, 10, 20), 1):
        keep(folder, number, size, unasked=number in (2, 4, 6), is_ours=number != 3)
    (folder / "notes").mkdir()
    kept.bound(folder)
    assert sorted(each.name for each in folder.iterdir()) == [*(f"{number:04}" for number in left), "notes"]
