"""Steps and collectives as tables that other programs read: all of them, exactly, and nothing that is not whole."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.harness import ddptop

from ddptop.agent import wire
from ddptop.agent.client.runs import Run
from ddptop.agent.onlookers.export import tables
from ddptop.agent.onlookers.export.tables import CsvTable, ExportError, ParquetTable, Table
from ddptop.agent.record import recording
from ddptop.agent.run import rundir

MS = 10**6
RECORD = rundir.Run(
    "r", "r", "toy.py", (), 2, "gloo", "cpu", time.time_ns() - 10**9, True, state="finished", ended_at_ns=time.time_ns()
)  # fmt: skip


def step(number: int, **changes: Any) -> wire.Step:
    """Return a step with collectives."""
    calls = tuple(
        wire.Collective("all_reduce", k * MS, None if k == 2 else 3 * MS, 64, 1, "0", queued_ns=MS) for k in range(1, 3)
    )
    usual: dict[str, Any] = {"loss": 1 / number, "samples": 8, "collectives": calls, "metrics": {"acc, %": 0.5}}
    usual |= changes
    return wire.Step(number, number, 1_800_000_000 * 10**9 + number, 20 * MS, MS, 2 * MS, None, 3 * MS, MS, 0, **usual)


def recorded(base: Path, messages: Sequence[wire.Steps]) -> Run:
    """Record steps of an ended run."""
    directory = rundir.create(RECORD)
    with closing(recording.open_file(directory.database)) as connection, connection:
        for message in messages:
            connection.execute(*recording.row(message, wire.encode(message)))
    return Run(directory)


def from_csv(file: Path) -> list[dict[str, Any]]:
    """Read a table with the module of Python."""
    with file.open(newline="") as text:
        return [{name: _value(value) for name, value in row.items()} for row in csv.DictReader(text)]


def _value(text: str) -> Any:
    if text in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[text]
    try:
        return float(text)
    except ValueError:
        return text


def from_parquet(file: Path) -> list[dict[str, Any]]:
    """Read a table with Arrow, whose rows have their types."""
    parquet = pytest.importorskip("pyarrow.parquet")
    rows: list[dict[str, Any]] = parquet.read_table(str(file)).to_pylist()
    return rows


KINDS = pytest.mark.parametrize(("kind", "read"), [(CsvTable, from_csv), (ParquetTable, from_parquet)])


@KINDS
def test_every_step_and_collective_is_there(kind: type[Table], read: Any, own_base: Path, tmp_path: Path) -> None:
    """With rank and start; what is not known is empty, and what is not finite is not."""
    steps = [step(1), step(2, loss=math.nan, samples=None, metrics={})]
    run = recorded(own_base, [wire.Steps(0, tuple(steps)), wire.Steps(1, (step(1, loss=math.inf),), generation=1)])
    _, problems = tables.write(run, tmp_path / "new" / "folder", kind)
    assert not problems
    first, second, third = read(tmp_path / "new" / "folder" / f"steps.{kind.suffix}")
    assert (first["rank"], first["start"], first["step"], first["loss"]) == (0, 0, 1, 1.0)
    assert (first["step_ms"], first["data_ms"], first["forward_ms"], first["backward_ms"]) == (20.0, 1.0, 2.0, None)
    assert first["end_at"] == pytest.approx(1.8e9)
    assert json.loads(first["metrics"]) == {"acc, %": 0.5}
    assert (second["samples"], second["metrics"]) == (None, None)
    assert math.isnan(second["loss"])
    assert (third["rank"], third["start"], third["loss"]) == (1, 1, math.inf)
    calls = read(tmp_path / "new" / "folder" / f"collectives.{kind.suffix}")
    assert [(each["rank"], each["step"], each["number"], each["duration_ms"]) for each in calls] == [
        (0, 1, 0, 3.0), (0, 1, 1, None), (0, 2, 0, 3.0), (0, 2, 1, None), (1, 1, 0, 3.0), (1, 1, 1, None),
    ]  # fmt: skip
    assert (calls[0]["op"], calls[0]["group"] in ("0", 0.0), calls[0]["bytes"]) == ("all_reduce", True, 64)
    with pytest.raises(ExportError, match="already there"):
        tables.write(run, tmp_path / "new" / "folder", kind)


def test_what_is_damaged_is_left_out_and_said(own_base: Path, tmp_path: Path) -> None:
    """A page of the file, and a message: all before and behind them is written, with exit code 1."""
    messages = [wire.Steps(number % 2, tuple(step(number * 10 + k) for k in range(1, 5))) for number in range(300)]
    run = recorded(own_base, messages)
    database = own_base / "r" / "run.db"
    content = bytearray(database.read_bytes())
    pages = len(content) // 4096
    begin = 4096 * (pages // 2)
    content[begin : begin + 4096] = b"\xff" * 4096
    database.write_bytes(content)
    done = ddptop("export", "r", "--csv", str(tmp_path))
    assert done.returncode == 1
    assert "a part of the record cannot be read" in done.stderr
    assert done.stderr.count("\n") == 1
    found = [row["step"] for row in from_csv(tmp_path / "steps.csv")]
    everything = {each.step for message in messages for each in message.steps}
    assert set(found) <= everything
    assert len(found) == len(set(found))
    assert {min(everything), max(everything)} <= set(found)
    assert len(found) > 0.9 * len(everything)
    assert Run(run.directory).name == "r"


def test_of_a_file_that_is_cut_the_beginning_is_read(own_base: Path, tmp_path: Path) -> None:
    """As a copy that was interrupted leaves it."""
    run = recorded(
        own_base, [wire.Steps(0, tuple(step(number * 10 + k) for k in range(1, 5))) for number in range(300)]
    )
    content = (own_base / "r" / "run.db").read_bytes()
    (own_base / "r" / "run.db").write_bytes(content[: len(content) // 2])
    _, (problem,) = tables.write(run, tmp_path, CsvTable)
    assert "a part of the record cannot be read" in problem
    found = [row["step"] for row in from_csv(tmp_path / "steps.csv")]
    assert found == sorted(found)
    assert len(found) > 0.35 * 1200


def test_nothing_is_left_of_an_export_that_ends(
    own_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ctrl-C, or on a full disk, which is one line."""
    run = recorded(own_base, [wire.Steps(0, (step(1),))])

    def interrupted(self: Run, problems: list[str]) -> Iterator[wire.Steps]:
        yield wire.Steps(0, (step(1),))
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "steps", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tables.write(run, tmp_path / "a", CsvTable)
    assert not list((tmp_path / "a").iterdir())

    def full(self: Table, rows: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CsvTable, "_write", full)
    monkeypatch.setattr(tables, "TOGETHER", 1)
    with pytest.raises(ExportError, match="No space left"):
        tables.write(run, tmp_path / "a", CsvTable)
    assert not list((tmp_path / "a").iterdir())


def test_a_run_without_steps_has_empty_tables(own_base: Path, tmp_path: Path) -> None:
    """Which say what their columns are; a word says why they are empty."""
    recorded(own_base, [])
    done = ddptop("export", "r", "--csv", str(tmp_path))
    assert (done.returncode, "no step is recorded" in done.stdout) == (0, True)
    assert (tmp_path / "steps.csv").read_text().startswith("rank,start,step,end_at,step_ms,data_ms")
    refused = ddptop("export", "r", "--csv", str(tmp_path / "steps.csv"))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


WITHIN = """
import resource, sys
from pathlib import Path
from ddptop.agent.client.runs import Run
from ddptop.agent.onlookers.export import tables
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tables.write(Run.at(Path(sys.argv[1])), Path(sys.argv[2]), tables.CsvTable)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_larger_record_takes_no_more_memory(own_base: Path, tmp_path: Path) -> None:
    """Eight times as many steps: the same, within some MiB."""
    took = []
    for name, count in (("a", 250), ("b", 2000)):
        directory = rundir.create(rundir.Run(name, name, "toy.py", (), 2, "gloo", "cpu", 1, True))
        payload = wire.encode(wire.Steps(0, tuple(step(number) for number in range(1, 9))))
        with closing(recording.open_file(directory.database)) as connection, connection:
            connection.executemany(recording.INSERT_STEPS, [(0, 0, 1, 8, payload)] * count)
        words = [sys.executable, "-c", WITHIN, str(directory.path), str(tmp_path / name)]
        took.append(int(subprocess.run(words, capture_output=True, text=True, check=True).stdout))
    assert took[1] < took[0] + (6 << 10)
