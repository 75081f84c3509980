"""The client alone is enough for a program that looks on: a sample exporter, and the example in the manual."""

from __future__ import annotations

import ast
import re
import runpy
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.fakes.observers import observed
from support.fakes.ranks import step
from support.harness import until

from ddptop.agent import wire
from ddptop.agent.run.rundir import Run
from ddptop.tui.cli.output import pages

EXPORTER = Path(__file__).with_name("exporter.py")


def imported(text: str) -> set[str]:
    """Return the modules of ddptop that a piece of Python imports."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    return {node.module or "" for node in found if (node.module or "").startswith("ddptop")}


def test_a_live_run_is_exported(runtime: Path) -> None:
    """Its state and the steps of its ranks, by functions of the client."""
    export = runpy.run_path(str(EXPORTER))["export"]
    run = Run("exported", "exported", "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True)
    with observed(run) as observer, ThreadPoolExecutor() as threads:
        observer.store.apply(wire.Steps(1, (step(1), step(2))), time.time())
        asked = threads.submit(export)
        until(lambda: observer.turn() and asked.done(), "the lines")
        lines = asked.result().splitlines()
    assert 'ddptop_run{run="exported",state="running"} 1' in lines
    assert 'ddptop_run_loss{run="exported"} 0.5' in lines
    assert any(line.startswith('ddptop_rank_step_ms{run="exported",rank="1",host="host"}') for line in lines)
    assert all(module.startswith("ddptop.agent.client") for module in imported(EXPORTER.read_text()))


def test_the_example_of_the_manual_runs(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here where there is no run."""
    (code,) = re.findall(r"```python\n(.*?)```", pages.read("json"), re.DOTALL)
    assert all(module.startswith("ddptop.agent.client") for module in imported(code))
    exec(compile(code, "json.md", "exec"), {})
    assert capsys.readouterr().out == ""
