"""What all tests share: a runtime directory of their own, and the promise that nothing is left running."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from support.bases import base_of_its_own

from ddptop.agent.run import rundir

# Before any test imports torch: its threads would wait for each other by spinning, on cores that the ranks need.
os.environ["OMP_NUM_THREADS"] = "1"
# Where it is set, each of the hundreds of processes that the tests start would compile all modules of ours anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The same examples in each run, so that what fails is the change; `--hypothesis-profile default` looks for new ones.
settings.register_profile("suite", derandomize=True, database=None, deadline=None)
settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    """Let `--dist loadfile` hand out the files as they are collected: those with real ranks come first.

    By the number of their tests, its own order, they would come last, and one worker would wait for the other.
    """
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep what was imported for good out of every later collection of garbage, which would look at it all.

    Collections also come less often: a third of what tests of the dashboard took was spent on them.

    Every worker reads all test files: one that imports torch meanwhile costs each of them seconds.
    """
    if "torch" in sys.modules:
        raise pytest.UsageError("a test file imports torch while it is collected: give it `support.late.imports`")
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def runtime() -> Iterator[Path]:
    """A runtime directory with a path short enough for sockets; everything in it is ended afterwards."""
    # What was launched is remembered in the second one.
    with base_of_its_own() as base, tempfile.TemporaryDirectory(prefix="dt-state-", dir="/tmp") as state:
        os.environ[rundir.BASE_VARIABLE] = str(base)
        os.environ["XDG_STATE_HOME"] = state
        # Pictures have colors, whatever terminal the tests run in.
        os.environ["TERM"] = "xterm-256color"
        # Where the tests themselves run in the background SIGINT is ignored, and all they start inherits that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for name in (rundir.MARKER, rundir.DIRECTORY_VARIABLE):
            os.environ.pop(name, None)
        yield base


@pytest.fixture
def own_base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime directory of this test alone, without any run: other tests leave theirs in the shared one.

    Nothing in it is ended: the test itself may stand for an observer or a rank there.
    """
    with tempfile.TemporaryDirectory(prefix="dt-", dir="/tmp", ignore_cleanup_errors=True) as base:
        monkeypatch.setenv(rundir.BASE_VARIABLE, base)
        yield Path(base)
