"""The observer of a job started by hand finds its own packages, and gets no others of the rank."""

from __future__ import annotations

import os
from pathlib import Path

from ddptop.agent.launcher import detached


def test_of_the_users_import_path_only_what_the_observer_needs_is_passed_on(tmp_path: Path) -> None:
    """Where ddptop was installed into a folder of PYTHONPATH it must be found there; a script's own folder is not."""
    (tmp_path / "installed" / "zmq").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "queue.py").touch()
    given = os.pathsep.join(["", str(tmp_path / "own"), str(tmp_path / "installed"), str(tmp_path / "no-such")])
    assert detached._import_path(given) == str(tmp_path / "installed")
    assert detached._import_path("") == ""
