"""What lies in the user's folder is never imported by ours, and the script's import path is Python's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.harness import own_words

from ddptop.agent.client.start.request import Request
from ddptop.agent.launcher import launcher
from ddptop.agent.run import rundir
from ddptop.agent.startup import starter
from ddptop.tui.launch import target

BY_NAME = ("-m", "ddptop.agent")
BY_PATH = (launcher.RUNNER,)
DECOY = """import posix
posix.close(posix.open({marker!r}, posix.O_WRONLY | posix.O_CREAT))
raise ImportError("a file of the user")
"""
SELF = """import json, multiprocessing, sys
SEEN = '''
import json, sys
main = sys.modules["__main__"]
names = {"__file__", "__package__", "__spec__", "__loader__", "__cached__", "__doc__", "__name__", "__annotations__"}
told = {name: str(vars(main).get(name, "absent")).partition(" object")[0] for name in sorted(names)}
print(json.dumps([sys.path, sys.argv, told, str(vars(main)["__builtins__"])]), flush=True)
'''
if __name__ == "__main__":
    exec(SEEN, {})
    child = multiprocessing.get_context("spawn").Process(target=exec, args=(SEEN, {}))
    child.start()
    child.join()
"""


def python(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=cwd, env=os.environ | environment, check=False
    )


@pytest.fixture
def littered(tmp_path: Path) -> Path:
    """A folder with a file called like each module that ours or the library's could ask for."""
    # What `python -m` itself needs is beyond us; most of it is loaded before that folder comes into play.
    needed = python("-c", "import runpy, sys; print(*sys.modules)", cwd=tmp_path).stdout.split()
    ours = {"msgspec", "zmq", "psutil", "numpy", "torch", "textual", "rich", "pynvml", "tomli", "typing_extensions"}
    for name in (sys.stdlib_module_names | ours) - {*needed}:
        (tmp_path / f"{name}.py").write_text(DECOY.format(marker=str(tmp_path / "imported")))
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text("print('trained')")
    return tmp_path


@pytest.mark.parametrize("runner", [BY_NAME, BY_PATH, ("-umddptop.agent",)])
def test_the_agent_imports_nothing_of_the_current_directory(littered: Path, runner: tuple[str, ...]) -> None:
    """Neither where torchrun is told `-m ddptop.agent` by hand, nor where ddptop starts the runner by its path."""
    done = python(*runner, "scripts/train.py", cwd=littered)
    assert (done.returncode, done.stdout, own_words(done.stderr)) == (0, "trained\n", "")
    assert not (littered / "imported").exists()


def test_processes_of_ours_import_nothing_of_the_current_directory(littered: Path) -> None:
    """The process behind a browser's tab gets as far as to look for its run."""
    done = python(*starter.isolated("ddptop.tui.app.web.browser")[1:], "no-such-run", "its-id", "9", cwd=littered)
    assert "run 'no-such-run': the run that is served is gone" in done.stderr.splitlines()[-1]
    assert not (littered / "imported").exists()


def test_no_command_line_of_ours_begins_with_a_module() -> None:
    """torchrun, the runner under it and the catalogue's programs are started by the path of a file."""
    command = launcher.command("-m package.train", ("-m",), 2)
    assert "-m" not in command[: command.index(launcher.RUNNER)]
    assert all(os.path.isfile(command[at]) for at in (0, 1, command.index(launcher.RUNNER)))
    assert "-m" not in launcher.spawn_command("-m ddptop.trainers.programs.primitives.toy", ())
    assert launcher.spawn_command("-m package.train", ()) == (sys.executable, "-m", "package.train")


def test_looking_for_a_module_leaves_the_import_path_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`launch -m` finds a module of the current directory, which the dashboard does not look into afterwards."""
    (tmp_path / "mine.py").write_text("")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert target.target(Request("mine", as_module=True)).target == "-m mine"
    assert sys.path == before


@pytest.fixture
def program(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """One that tells what it sees, of the kind asked for."""
    folder = tmp_path / "deep"
    folder.mkdir()
    for path in ("tell.py", "__main__.py"):
        (folder / path).write_text(SELF)
    (tmp_path / "link.py").symlink_to("deep/tell.py")
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.write(folder / "__main__.py", "__main__.py")
    (tmp_path / "mod.py").write_text(SELF)
    kinds: Mapping[str, tuple[str, ...]] = {
        "script": ("./deep/tell.py",),
        "link": ("link.py",),
        "module": ("-m", "mod"),
        "folder": ("./deep/",),
        "archive": ("archive",),
    }
    return kinds[request.param]


PLAIN: Mapping[str, str] = {}
PATH = {"PYTHONPATH": "some:/where"}
SAFE = {"PYTHONSAFEPATH": "1"}


@pytest.mark.parametrize(
    ("program", "environment"),
    [("script", PATH), ("link", PLAIN), ("module", PLAIN), ("folder", SAFE), ("archive", PLAIN)],
    indirect=["program"],
)  # fmt: skip
def test_a_program_sees_what_it_sees_under_python(
    program: tuple[str, ...], environment: Mapping[str, str], tmp_path: Path
) -> None:
    """Import path, arguments and main module are the same with and without the agent, in spawned children too."""

    def seen(*before: str, **more: str) -> list[Any]:
        done = python(*before, *program, "--lr", "0.1", cwd=tmp_path, **environment, **more)
        assert (done.returncode, own_words(done.stderr)) == (0, "")
        return [json.loads(line) for line in done.stdout.splitlines()]

    expected = seen()
    assert len(expected) == 2
    assert seen(*BY_NAME) == expected
    (directory,) = (found for found in rundir.runs() if found.read().cwd == str(tmp_path))
    # Its run is known: this is how a rank of `ddptop launch` begins, but for its log.
    assert seen(*BY_PATH, **{rundir.DIRECTORY_VARIABLE: str(directory.path)}) == expected
