"""Imports point inward; shown in a fresh interpreter."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

import ddptop.agent

ROOT: Final = Path(ddptop.agent.__file__).parents[1]


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a statement loads in a fresh interpreter."""
    code = f"import sys\nbefore = set(sys.modules)\n{statement}\nprint(*sys.modules.keys() - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


LATER: Final = {
    "numpy",
    "ddptop.tui.app.keys.sections",
    "ddptop.tui.launch",
    "ddptop.tui.screens.dialogs.kill",
    "ddptop.tui.screens.dialogs.launch",
    "ddptop.tui.screens.dialogs.pickers",
    "ddptop.tui.screens.help",
    "ddptop.tui.screens.lists",
    "ddptop.tui.screens.rank",
    "ddptop.tui.screens.report",
    "ddptop.tui.screens.stacks",
    "ddptop.tui.views.heatmap",
    "ddptop.tui.views.table",
    "ddptop.tui.views.timeline",
}
"""What the dashboard imports when it is asked for."""


@pytest.mark.parametrize(
    ("statement", "forbidden"),
    [
        ("import ddptop.agent", {"torch", "textual", "zmq", "msgspec", "psutil"}),
        ("import ddptop.agent.wire", {"torch", "textual", "zmq"}),
        ("import ddptop.agent.__main__", {"torch", "textual"}),
        ("import ddptop.agent.observer.observer", {"torch", "textual"}),
        ("import ddptop.trainers", {"torch", "textual"}),
        ("import ddptop.tui.cli.main", {"torch", "textual", "zmq", "msgspec", "psutil"}),
        (
            "import ddptop.agent.client.watch, ddptop.tui.launch.launch, ddptop.tui.cli.output.status",
            {"torch", "textual"},
        ),
        # A look at a run has to be quick.
        (
            "import ddptop.agent.client.look, ddptop.tui.cli.output.status",
            {
                "numpy",
                "psutil",
                "shutil",
                "tempfile",
                "secrets",
                "subprocess",
                "ctypes",
                "importlib.metadata",
                "ddptop.agent.observer.observer",
                "ddptop.agent.record.recorder",
                "ddptop.agent.client.history",
            },
        ),
        ("import ddptop.agent.startup.version", {"importlib.metadata"}),
        (
            "import ddptop.tui.app.program, ddptop.tui.cli.view, ddptop.tui.link.runs",
            {"torch", "numpy", "psutil", "pynvml", "ddptop.agent.observer.observer"},
        ),
        # The first screen does not wait for those that a key opens.
        ("import ddptop.tui.app.program, ddptop.agent.client.history.history", LATER),
    ],
)
def test_a_room_loads_only_what_it_may(statement, forbidden):
    """The dashboard never loads torch, the agent never textual, and what must be light is."""
    found = loaded_by(statement) & forbidden
    assert not found


CLI: Final = {"zmq", "msgspec", "psutil", "numpy", "textual", "torch", "shutil", "importlib.metadata", "difflib"}
"""What the command line itself does without."""


@pytest.mark.parametrize(
    ("verb", "forbidden"),
    [
        ("--version", {*CLI, "ddptop.tui.cli.verbs.launch", "ddptop.tui.cli.verbs.listing"}),
        ("programs", {*CLI, "ddptop.tui.cli.verbs.launch"}),
        ("help", {*CLI - {"difflib", "shutil"}, "ddptop.tui.cli.verbs.launch"}),
        ("ps", {"psutil", "numpy", "textual", "torch", "shutil", "subprocess", "ddptop.tui.cli.verbs.launch"}),
        ("status", {"psutil", "numpy", "textual", "torch", "shutil", "subprocess", "ddptop.tui.cli.verbs.launch"}),
        ("attach", {"psutil", "numpy", "textual", "torch", "ddptop.tui.cli.verbs.launch"}),
    ],
)
def test_a_verb_loads_only_what_it_needs(
    verb: str, forbidden: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verb that is carried out, here where there is no run, loads nothing that another one needs."""
    monkeypatch.setenv("DDPTOP_RUNTIME_DIR", str(tmp_path))
    statement = (
        f"from ddptop.tui.cli import main\nsys.argv = ['ddptop', '{verb}']\ntry: main.main()\nexcept SystemExit: pass"
    )
    found = loaded_by(statement) & forbidden
    assert not found


def modules() -> dict[str, Path]:
    """Return the files of all our modules by name."""
    found = {}
    for room in ("agent", "tui", "trainers"):
        for path in (ROOT / room).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(("ddptop", *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return found


def imported_by(node: ast.AST) -> Iterator[str]:
    """Yield what a piece of code imports, within functions too, but not for its types alone."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        yield node.module
        yield from (f"{node.module}.{each.name}" for each in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imported_by(child)


def rooms_of_the_agent(path: Path) -> Iterator[str]:
    """Yield the rooms of the agent from which a file imports, for its types too; the package itself is an empty one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{each.name}" for each in node.names]
        else:
            continue
        yield from (f"{name}..".split(".")[2] for name in names if f"{name}.".startswith("ddptop.agent."))


def test_the_dashboard_knows_four_rooms_of_the_agent() -> None:
    """Its client, the onlookers on that, the wire and text: who writes a program that looks on has all of these."""
    ours = [path for name, path in modules().items() if name.startswith("ddptop.tui")]
    assert {room for path in ours for room in rooms_of_the_agent(path)} == {"client", "onlookers", "text", "wire"}


def test_no_modules_import_each_other() -> None:
    """Not in a larger circle either: whoever reads one of them reads all of them."""
    ours = modules()
    graph = {name: {*imported_by(ast.parse(path.read_text()))} & ours.keys() - {name} for name, path in ours.items()}
    assert len(graph) > 300
    TopologicalSorter(graph).prepare()
