"""Where the runs of a user are."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ddptop.agent.run import base

VARIABLES = ("TMPDIR", "TEMP", "TMP")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"TMPDIR": "a"},
        {"TEMP": "a", "TMP": "b"},
        {"TMPDIR": "", "TEMP": "b/../a"},
        {"TMPDIR": "absent", "TEMP": "a"},
        {"TMPDIR": "file", "TMP": "absent"},
    ],
    ids=str,
)
def test_the_default_is_where_temporary_files_are(
    given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions and other programs ask `tempfile`, and what they have made has to be found."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in given.items():
        monkeypatch.setenv(variable, value and str(tmp_path / value))
    asked = subprocess.run(
        [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    # What `tempfile` has found once it does not look for again.
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert base.default_base(7) == Path(asked.stdout.strip()) / "ddptop-7"
    assert set(os.listdir(tmp_path)) == {"a", "b", "file"}
