"""Names of files for people, whose code they are, and their lines: whatever the script calls its files."""

from __future__ import annotations

import os
import sysconfig
import threading
from pathlib import Path

import pytest
from support.harness import DEADLINE_S

import ddptop.agent
from ddptop.agent.run.script.sources import LONGEST, Sources, read_lines

SOURCES = Sources("/home/ada/net/src", "/home/ada/net")


@pytest.mark.parametrize(
    ("file", "name", "library"),
    [
        ("/home/ada/net/src/train.py", "train.py", False),
        ("/home/ada/net/src/parts/model.py", "parts/model.py", False),
        ("/home/ada/net/tools/data.py", "tools/data.py", False),
        ("/home/ada/net/src/./../src/train.py", "train.py", False),
        ("tools/data.py", "tools/data.py", False),
        ("/home/ada/net/.venv/lib/python3.12/site-packages/torch/nn/module.py", "torch/nn/module.py", True),
        ("/home/ada/net/src/lib/python3.12/site-packages/torch/nn/module.py", "torch/nn/module.py", True),
        ("/opt/conda/lib/python3.10/threading.py", "threading.py", True),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", "yaml/__init__.py", True),
        (f"{sysconfig.get_paths()['stdlib']}/runpy.py", "runpy.py", True),
        (os.path.join(os.path.dirname(ddptop.agent.__file__), "rank", "x.py"), "ddptop/agent/rank/x.py", True),
        ("/data/users/ada/shared/common/loaders.py", "…/shared/common/loaders.py", False),
        ("/tmp/torchinductor_ada/ab/cab.py", "…/torchinductor_ada/ab/cab.py", True),
        ("/usr/lib/libc.so.6", "/usr/lib/libc.so.6", True),
        ("<frozen runpy>", "<frozen runpy>", True),
        ("<stdin>", "<stdin>", False),
    ],
)
def test_a_file_has_a_short_name_and_belongs_to_somebody(file: str, name: str, library: bool) -> None:
    """Relative to a folder that the user knows, or to that of the packages, also where one is within the other."""
    assert (SOURCES.name(file), SOURCES.is_library(file)) == (name, library)


def test_an_installed_program_is_the_users() -> None:
    """Where the script is in a package of its own among the installed ones, the others are still libraries."""
    installed = Sources("/venv/lib/python3.12/site-packages/net", "/home/ada")
    assert not installed.is_library("/venv/lib/python3.12/site-packages/net/train.py")
    assert installed.is_library("/venv/lib/python3.12/site-packages/torch/nn/module.py")
    assert installed.name("/venv/lib/python3.12/site-packages/net/train.py") == "train.py"


def test_any_name_is_bounded_and_clean() -> None:
    """Escape sequences, bytes that are no text, and names as long as a script likes."""
    assert SOURCES.name("/x/\x1b[31mred\udcff.py") == "/x/red.py"
    name = SOURCES.name("/" + "a" * 10_000 + "/train.py")
    assert len(name) == LONGEST
    assert name.endswith("aaa/train.py")


def test_lines_come_clean_and_bounded(tmp_path: Path) -> None:
    """Those that are there; without indentation and escape sequences; a byte that is no text hurts nobody."""
    file = tmp_path / "script.py"
    file.write_bytes(b"first\n    x = \xff'\x1b[31m'\n" + b"y" * 100_000 + b"\nlast")
    found = read_lines(str(file), {1, 2, 3, 4, 5, 0, -1})
    assert found == {1: "first", 2: "x = �''", 3: "y" * LONGEST, 4: "last"}


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "large", "null byte", "newer"])
def test_what_cannot_be_read_has_no_lines(tmp_path: Path, kind: str) -> None:
    """A pipe that nobody writes to holds nobody up; a file changed since has other lines now."""
    file = tmp_path / "script.py"
    path, before = str(file), None
    match kind:
        case "folder":
            file.mkdir()
        case "fifo":
            os.mkfifo(file)
        case "large":
            with file.open("wb") as opened:
                opened.truncate(1 << 30)
        case "null byte":
            path = "a\0b"
        case "newer":
            file.write_text("changed")
            before = file.stat().st_mtime - 1
    found: list[dict[int, str]] = []
    thread = threading.Thread(target=lambda: found.append(read_lines(path, {1}, before=before)), daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert found == [{}]


def test_only_the_programs_own_files_are_its_own(tmp_path: Path) -> None:
    """A link out of its folder leads nowhere, and neither does a name of another file in it."""
    home, secret = tmp_path / "home", tmp_path / "secret.py"
    home.mkdir()
    secret.touch()
    (home / "link.py").symlink_to(secret)
    for name in ("train.py", "key.pem"):
        (home / name).touch()
    sources = Sources(str(home), "")
    own = [name for name in ("train.py", "key.pem", "link.py", "../secret.py") if sources.is_own(str(home / name))]
    assert own == ["train.py"]
