"""The commit that a launch records, against git itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ddptop.agent.client.start import source

GIT = ("git", "-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    return subprocess.run([*GIT, "-C", folder, *words], check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_the_scripts_folder_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    """Not those of the folder that the launch is typed in; nothing is known without git's folder, or a commit."""
    code, here = tmp_path / "code", tmp_path / "here"
    code.mkdir()
    here.mkdir()
    (code / "train.py").write_text("1\n")
    assert source.of(str(code), "train.py") == ("", None)
    git(code, "init", "-q")
    assert source.of(str(code), "train.py") == ("", None)
    git(code, "add", ".")
    git(code, "commit", "-qm", "first")
    commit = git(code, "rev-parse", "HEAD")
    assert source.of(str(here), str(code / "train.py")) == (commit, False)
    assert source.of(str(here), "-m package.train") == ("", None)
    assert source.of(str(code), "-m package.train") == (commit, False)
    (code / "train.py").write_text("2\n")
    assert source.of(str(code), "train.py") == (commit, True)


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path) -> None:
    """It is not known then."""
    assert source.of(str(tmp_path / "gone"), "train.py") == ("", None)
