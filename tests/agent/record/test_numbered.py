"""The numbered folders of diagnoses: in the order of their numbers, and none that nobody goes on with."""

from __future__ import annotations

from pathlib import Path

from support.bases import marked

from ddptop.agent.record import numbered
from ddptop.agent.run.files import marks


def test_the_next_folder_has_the_next_number_however_many_digits_that_has(tmp_path: Path) -> None:
    """The newest comes first; what an observer has left without its file goes, and what it has not made stays."""
    parent = marked(tmp_path) / "probes"
    for name in ("0002", "9998", "notes", "12"):
        (parent / name).mkdir(parents=True)
        (parent / name / "probe.json").touch()
    (parent / "2024").mkdir()
    marks.make(parent / "9999")
    for number in ("10000", "10001"):
        made = numbered.new(parent, "probe.json")
        assert made.name == number
        (made / "probe.json").touch()
    assert [each.name for each in numbered.folders(parent)] == ["10001", "10000", "9998", "2024", "0002"]
    assert {each.name for each in parent.iterdir()} == {"0002", "9998", "10000", "10001", "2024", "notes", "12"}
    assert numbered.folders(tmp_path / "none") == []
