"""The Python line of a crash: in the rank's log, and without a change that the script could see."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.bases import marked

from ddptop.agent.end import traces

BEGIN = """
import ctypes, faulthandler, os, sys
from pathlib import Path
from ddptop.agent.rank.process import crashes
before = faulthandler.enable, faulthandler.disable, faulthandler.is_enabled
really = faulthandler.is_enabled
crashes.begin({file})
assert really()
def crash():
    ctypes.string_at(0)
"""


def ended(script: str, file: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script after the agent's beginning, and return its end."""
    text = BEGIN.format(file=None if file is None else f"Path({str(file)!r})") + script
    return subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONFAULTHANDLER"} | environment,
    )


def test_a_crash_leaves_its_line_and_ends_as_it_would_have() -> None:
    """On stderr, which is the log of a launched rank."""
    done = ended("crash()")
    assert done.returncode == -signal.SIGSEGV
    found = traces.crash(done.stderr)
    assert found is not None
    assert found.what == "Segmentation fault"
    assert [spot.function for spot in found.stack.frames][1:3] == ["crash", "<module>"]


def test_the_stacks_of_a_rank_without_a_log_go_to_a_file(tmp_path: Path) -> None:
    """Its terminal gets what it would have got; what the file had before is of an earlier process."""
    file = marked(tmp_path) / "rank-0.crash"
    assert ended("crash()", file).returncode == -signal.SIGSEGV
    done = ended("os.abort()", file)
    assert (done.returncode, done.stderr) == (-signal.SIGABRT, "")
    found = traces.crash(file.read_text())
    assert found is not None
    assert found.what == "Aborted"
    assert file.stat().st_mode & 0o077 == 0


def test_a_script_that_enables_it_itself_is_heard(tmp_path: Path) -> None:
    """To one that asks it is not enabled; after it has enabled it, all is as without the agent."""
    own = tmp_path / "own"
    done = ended(
        "assert not faulthandler.is_enabled()\n"
        f"faulthandler.enable(open({str(own)!r}, 'w'))\n"
        "assert (faulthandler.enable, faulthandler.disable, faulthandler.is_enabled) == before\n"
        "assert faulthandler.is_enabled()\n"
        "crashes.end()\n"
        "assert faulthandler.is_enabled()\n"
        "crash()\n"
    )
    assert (done.returncode, done.stderr) == (-signal.SIGSEGV, "")
    assert traces.crash(own.read_text()) is not None


@pytest.mark.parametrize("ending", ["faulthandler.disable()", "crashes.end()"])
def test_after_the_script_or_by_its_wish_nothing_is_written(ending: str) -> None:
    """An abort of torch at the end of the interpreter says nothing that is worth a dump."""
    done = ended(f"assert not {ending}\nassert faulthandler.is_enabled is before[2]\nassert not really()\nos.abort()")
    assert (done.returncode, done.stderr) == (-signal.SIGABRT, "")


def test_one_that_the_environment_has_enabled_stays() -> None:
    """The functions are Python's own then, and so is the dump."""
    done = ended("assert faulthandler.enable is before[0]\ncrashes.end()\ncrash()", PYTHONFAULTHANDLER="1")
    assert done.returncode == -signal.SIGSEGV
    assert traces.crash(done.stderr) is not None


def test_without_stderr_there_is_no_error() -> None:
    """A rank may have closed it, or its file may be impossible: the script goes on."""
    for begun in ("os.close(2)", "pass"):
        text = BEGIN.replace(
            "crashes.begin({file})", f"{begun}\ncrashes.begin(Path('/no/such/file'))\ncrashes.begin(None)"
        )
        text = text.replace("assert really()", "print(really())")
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip() == str(begun == "pass")
