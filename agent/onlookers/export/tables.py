"""The recorded steps of a run, and their collectives, as two tables in Parquet or CSV.

They are written while the record is read: a record of any size takes the memory of some thousand rows.
"""

from __future__ import annotations

import csv
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec

from ddptop.agent.client.runs import Run
from ddptop.agent.text import Complaint, plural
from ddptop.agent.wire.telemetry import PHASES

TOGETHER: Final = 16_384
"""Rows that are written at once."""
_BATCHES: Final = 16
"""So many times as many rows are a group of a Parquet file."""


class ExportError(Complaint):
    """An export that cannot be, and the remedy, in one line."""


Column = tuple[str, Callable[[Any], Any]]
"""The type of a column, in the words of Arrow, and what returns the value of a row; None: not known."""


def _times(*fields: str) -> dict[str, Column]:
    def ms(field: str) -> Callable[[Any], float | None]:
        read = attrgetter(field)
        return lambda told: None if (found := read(told)) is None else found / 1e6

    return {f"{field}_ms": ("float64", ms(f"{field}_ns")) for field in fields}


def _plain(kind: str, *fields: str) -> dict[str, Column]:
    return {field: (kind, attrgetter(field)) for field in fields}


STEPS: Final[Mapping[str, Column]] = {
    "end_at": ("float64", lambda step: step.end_at_ns / 1e9),
    "step_ms": _times("wall")["wall_ms"],
    **_times(*PHASES, "starved"),
    **_plain("float64", "loss"),
    "learning_rate": ("float64", attrgetter("lr")),
    **_plain("int64", "samples", "tokens", "counted"),
    "metrics": ("string", lambda step: msgspec.json.encode(step.metrics).decode() if step.metrics else None),
}
COLLECTIVES: Final[Mapping[str, Column]] = {
    **_plain("string", "op", "group"),
    **_times("entered", "duration", "queued"),
    **_plain("int64", "bytes", "in_flight"),
    **_plain("bool", "blocking", "estimated", "on_device"),
}
_KEYS: Final = (("rank", "int64"), ("start", "int64"), ("step", "int64"))
"""Columns that both tables begin with; `start` counts the starts of the group, from 0."""
_NUMBER: Final = ("number", "int64")
"""Of a collective, its place among those of its step, from 0."""

Row = tuple[Any, ...]


class Table(ABC):
    """A file that is written row by row."""

    suffix = ""

    def __init__(self, folder: Path, name: str, columns: Sequence[tuple[str, str]]) -> None:
        """Begin the file."""
        self.file = folder / f"{name}.{self.suffix}"
        self.rows = 0
        self._waiting: list[Row] = []
        self._open(columns)

    @abstractmethod
    def _open(self, columns: Sequence[tuple[str, str]]) -> None: ...

    @abstractmethod
    def _write(self, rows: Sequence[Row]) -> None: ...

    def add(self, row: Row) -> None:
        """Add a row."""
        self._waiting.append(row)
        self.rows += 1
        if len(self._waiting) >= TOGETHER:
            self._write(self._waiting)
            self._waiting = []

    def close(self) -> None:
        """Write the rest."""
        self._write(self._waiting)


class CsvTable(Table):
    """Text, with commas between values; what is not known is empty."""

    suffix = "csv"

    def _open(self, columns: Sequence[tuple[str, str]]) -> None:
        self._text = self.file.open("x", newline="", encoding="utf-8")
        self._writer = csv.writer(self._text)
        self._writer.writerow([name for name, _ in columns])

    def _write(self, rows: Sequence[Row]) -> None:
        self._writer.writerows(rows)

    def close(self) -> None:
        """Write the rest."""
        with self._text:
            super().close()


class ParquetTable(Table):
    """Columns of Arrow, in few groups of rows: the file's index is held until its end."""

    suffix = "parquet"

    def _open(self, columns: Sequence[tuple[str, str]]) -> None:
        import pyarrow
        import pyarrow.parquet

        self._schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in columns])
        self._writer = pyarrow.parquet.ParquetWriter(str(self.file), self._schema, compression="zstd")
        self._batches: list[pyarrow.RecordBatch] = []

    def _write(self, rows: Sequence[Row]) -> None:
        import pyarrow

        columns = zip(zip(*rows, strict=True), self._schema, strict=True) if rows else ()
        if arrays := [pyarrow.array(values, field.type) for values, field in columns]:
            self._batches.append(pyarrow.record_batch(arrays, schema=self._schema))
        if len(self._batches) >= _BATCHES or not rows:
            self._writer.write_table(pyarrow.Table.from_batches(self._batches, self._schema), _BATCHES * TOGETHER)
            self._batches = []

    def close(self) -> None:
        """Write the rest."""
        with self._writer:
            super().close()
            self._write(())


def write(run: Run, folder: Path, kind: type[Table]) -> tuple[list[str], list[str]]:
    """Write the tables of a run into a folder; each has its place there only once both are whole.

    Returns:
        Lines on what was written and what is not in it, and lines on what of the record could not be read.

    Raises:
        ExportError: nothing is written.
    """
    columns = {
        "steps": [*_KEYS, *((name, kind) for name, (kind, _) in STEPS.items())],
        "collectives": [*_KEYS, _NUMBER, *((name, kind) for name, (kind, _) in COLLECTIVES.items())],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ExportError(f"{folder}: {problem.strerror}; give a folder") from problem
    for name in columns:
        if os.path.lexists(file := folder / f"{name}.{kind.suffix}"):
            raise ExportError(f"{file}: already there; give another folder, or remove it")
    problems: list[str] = []
    try:
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as hidden:
            steps, collectives = (kind(Path(hidden), name, each) for name, each in columns.items())
            with closing(steps), closing(collectives):
                first, last = _fill(run, steps, collectives, problems)
            lines = []
            for table in (steps, collectives):
                file = table.file.replace(folder / table.file.name)
                lines.append(f"{file}: {plural(table.rows, 'row')}")
    except OSError as problem:
        raise ExportError(f"{folder}: {problem.strerror or problem}") from problem
    if first > 1:
        lines.append(f"steps before {first:,} are no longer recorded one by one, and are left out")
    return (lines if last else [*lines, "no step is recorded"]), problems


def _fill(run: Run, steps: Table, collectives: Table, problems: list[str]) -> tuple[int, int]:
    """Write the rows of both tables, and return the first and the last step; 0 where there is none."""
    first = last = 0
    of_step, of_call = ([value for _, value in columns.values()] for columns in (STEPS, COLLECTIVES))
    for message in run.steps(problems):
        for step in message.steps:
            keys = message.rank, message.generation, step.step
            steps.add((*keys, *(value(step) for value in of_step)))
            for number, call in enumerate(step.collectives):
                collectives.add((*keys, number, *(value(call) for value in of_call)))
            first, last = min(first or step.step, step.step), max(last, step.step)
    return first, last
