"""What every Python of a spawned run does at its start: nothing that is seen, where it is none of ours."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddptop.agent.client.start.request import Request
from ddptop.agent.run import rundir
from ddptop.agent.startup import pythonpath
from ddptop.tui.launch import launch

FILE = Path(pythonpath.__file__).with_name("sitecustomize.py")


def test_the_python_of_another_environment_is_left_in_peace(tmp_path: Path) -> None:
    """Without ddptop among its packages it says nothing, and ends as it would."""
    environment = {**os.environ, rundir.DIRECTORY_VARIABLE: str(tmp_path)}
    # Without `site` there are no installed packages.
    command = [sys.executable, "-S", str(FILE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_in_the_environment_of_ddptop_it_is_told(tmp_path: Path) -> None:
    """A rank that will not be seen says why in one line, and starts all the same."""
    (tmp_path / "multiprocessing").mkdir()
    (tmp_path / "inspect.py").write_text("raise ImportError('broken', name='inspect')")
    environment = {**os.environ, **pythonpath.environment({"PYTHONPATH": str(tmp_path)})}
    environment[rundir.DIRECTORY_VARIABLE] = str(tmp_path)
    command = [sys.executable, "-c", "print('runs')"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs\n", "ddptop: no agent in this process (broken)\n")


def test_old_pythons_can_read_it() -> None:
    """No syntax that Python 2.7 lacks: it is read by whatever Python a script starts."""
    tree = ast.parse(FILE.read_text(), feature_version=(3, 4))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            arguments = node.args
            assert node.returns is None
            assert not [each for each in arguments.args if each.annotation]
            assert not arguments.kwonlyargs
            assert not arguments.posonlyargs
        assert not isinstance(
            node, ast.JoinedStr | ast.AnnAssign | ast.NamedExpr | ast.Nonlocal | ast.Starred | ast.AsyncFunctionDef
        )
        if isinstance(node, ast.ImportFrom):
            assert node.module != "__future__"
        if isinstance(node, ast.Raise):
            assert node.cause is None
        if isinstance(node, ast.Call):
            assert not (isinstance(node.func, ast.Name) and node.func.id == "print")


def test_a_program_sees_its_own_import_path(tmp_path: Path) -> None:
    """Once it runs our folder is gone from there; for the processes that it starts it stays in the environment."""
    code = "import os, sys; print(sys.path, 'startup' in os.environ['PYTHONPATH'])"
    seen = []
    for environment in ({}, pythonpath.environment(os.environ | {"PYTHONPATH": str(tmp_path)})):
        given = {**os.environ, "PYTHONPATH": str(tmp_path), **environment, rundir.DIRECTORY_VARIABLE: "/nowhere"}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
        seen.append(done.stdout.rsplit(" ", 1))
    assert seen[0][0] == seen[1][0]
    assert (seen[0][1], seen[1][1]) == ("False\n", "True\n")


def test_a_search_path_that_the_user_gives_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--env PYTHONPATH=…` counts with `--start spawn` too; our folder comes before it."""
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ddptop.agent.launcher.observers.start", lambda directory: None)
    request = Request("train.py", world=1, backend="gloo", start="spawn", environment=("PYTHONPATH=/mine",))
    directory = launch.launch(request).directory
    assert directory.read().environment["PYTHONPATH"].split(os.pathsep) == [str(FILE.parent), "/mine"]
    directory.update(state="finished")
