"""`launch -m`: a module is found without running anything of the user's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddptop.agent.client.start.request import Request, RequestError
from ddptop.tui.launch import target

FILES = (
    "bad/__init__.py", "bad/mod.py", "bad/sub/__init__.py", "bad/sub/mod.py", "bad/prog/__init__.py",
    "bad/prog/__main__.py", "space/deep/mod.py", "plain.py", "my-script.py",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place with packages that write a file, and fail, where one is imported."""
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("open('was run', 'w').close()\nraise RuntimeError('imported')\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "hidden.py").touch()
    (tmp_path / "chooser").mkdir()
    (tmp_path / "chooser" / "__init__.py").write_text("__path__ = ['elsewhere']\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "module",
    ["plain", "my-script", "bad.mod", "bad.sub.mod", "bad.prog", "space.deep.mod", "chooser.hidden", "this",
     "json.tool", "ddptop.trainers.programs.data_parallel.resnet", "zipimport"],
)  # fmt: skip
def test_what_can_be_run_is_found_and_not_run(folder: Path, module: str) -> None:
    """Modules, packages with a main module, namespace packages, the standard library's, and ddptop's own."""
    before = set(sys.modules)
    assert target.target(Request(module, as_module=True)).target == f"-m {module}"
    assert not (folder / "was run").exists()
    assert {name for name in set(sys.modules) - before if name.startswith(("bad", "space", "plain"))} == set()


REFUSED = (
    ("nothing", "no module 'nothing'"),
    ("bad.nothing", "no module 'bad.nothing'"),
    ("bad.mod.more", "bad.mod is a module"),
    ("bad.sub", "without __main__.py"),
    ("space", "without __main__.py"),
    (".mod", "package.module"),
    ("bad/mod", "package.module"),
    ("", "package.module"),
)


def test_what_cannot_be_run_is_refused_as_python_does(folder: Path) -> None:
    """In one line, before anything starts; Python runs none of these names either."""
    for module, says in REFUSED:
        with pytest.raises(RequestError, match=says):
            target.target(Request(module, as_module=True))
    assert not (folder / "was run").exists()
    code = """
import runpy, sys
for name in sys.argv[1:]:
    try:
        runpy.run_module(name, run_name="__main__")
    except (ImportError, RuntimeError, ValueError):
        print("failed")
"""
    names = [module for module, _ in REFUSED]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["failed"] * len(names)
