"""The recorded steps of a run, and their collectives, as two tables in Parquet or CSV.

They are written while the record is read: a record of any size takes the memory of some thousand rows.
"""

from __future__ import annotations

import contextlib
import csv
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ddptop.agent.client.runs import Run
from ddptop.agent.text import Complaint, plural
from ddptop.agent.wire import Step
from ddptop.agent.wire.telemetry import PHASES

TOGETHER: Final = 16_384
"""Rows that are written at once."""
_BATCHES: Final = 16
"""So many times as many rows are a group of a Parquet file."""


class ExportError(Complaint):
    """An export that cannot be, and the remedy, in one line."""


class Column(NamedTuple):
    """One column of a table."""

    name: str
    kind: str
    """Its type, in the words of Arrow."""
    of: Callable[[Any], Any]
    """Returns the value of a row; None: not known."""


def _ms(field: str) -> Callable[[Any], float | None]:
    read = attrgetter(field)

    def value(told: Any) -> float | None:
        found = read(told)
        return None if found is None else found / 1e6

    return value


def _metrics(step: Step) -> str | None:
    return msgspec.json.encode(step.metrics).decode() if step.metrics else None


STEPS: Final = (
    Column("end_at", "float64", lambda step: step.end_at_ns / 1e9),
    Column("step_ms", "float64", _ms("wall_ns")),
    *(Column(f"{phase}_ms", "float64", _ms(f"{phase}_ns")) for phase in PHASES),
    Column("starved_ms", "float64", _ms("starved_ns")),
    Column("loss", "float64", attrgetter("loss")),
    Column("learning_rate", "float64", attrgetter("lr")),
    Column("samples", "int64", attrgetter("samples")),
    Column("tokens", "int64", attrgetter("tokens")),
    Column("counted", "int64", attrgetter("counted")),
    Column("metrics", "string", _metrics),
)
COLLECTIVES: Final = (
    Column("op", "string", attrgetter("op")),
    Column("group", "string", attrgetter("group")),
    Column("entered_ms", "float64", _ms("entered_ns")),
    Column("duration_ms", "float64", _ms("duration_ns")),
    Column("queued_ms", "float64", _ms("queued_ns")),
    Column("bytes", "int64", attrgetter("bytes")),
    Column("in_flight", "int64", attrgetter("in_flight")),
    Column("blocking", "bool", attrgetter("blocking")),
    Column("estimated", "bool", attrgetter("estimated")),
    Column("on_device", "bool", attrgetter("on_device")),
)
_KEYS: Final = (("rank", "int64"), ("start", "int64"), ("step", "int64"))
"""Columns that both tables begin with; `start` counts the starts of the group, from 0."""
_NUMBER: Final = ("number", "int64")
"""Of a collective, its place among those of its step, from 0."""

Row = tuple[Any, ...]


class Table(ABC):
    """A file that is written row by row, and has its name only once it is whole."""

    suffix = ""

    def __init__(self, folder: Path, name: str, columns: Sequence[tuple[str, str]]) -> None:
        """Begin the file."""
        self.file = folder / f"{name}.{self.suffix}"
        self.rows = 0
        self._waiting: list[Row] = []
        self._partial = folder / f".{self.file.name}.{os.getpid()}"
        self._open(columns)

    @abstractmethod
    def _open(self, columns: Sequence[tuple[str, str]]) -> None: ...

    @abstractmethod
    def _write(self, rows: Sequence[Row]) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    def add(self, row: Row) -> None:
        """Add a row."""
        self._waiting.append(row)
        self.rows += 1
        if len(self._waiting) >= TOGETHER:
            self._write(self._waiting)
            self._waiting = []

    def finish(self) -> None:
        """Write the rest, and give the file its name."""
        self._write(self._waiting)
        self._close()
        self._partial.replace(self.file)

    def drop(self) -> None:
        """Leave nothing of a file that is not whole."""
        with contextlib.suppress(Exception):
            self._close()
        self._partial.unlink(missing_ok=True)


class CsvTable(Table):
    """Text, with commas between values; what is not known is empty."""

    suffix = "csv"

    def _open(self, columns: Sequence[tuple[str, str]]) -> None:
        self._text = self._partial.open("x", newline="", encoding="utf-8")
        self._writer = csv.writer(self._text)
        self._writer.writerow([name for name, _ in columns])

    def _write(self, rows: Sequence[Row]) -> None:
        self._writer.writerows(rows)

    def _close(self) -> None:
        self._text.close()


class ParquetTable(Table):
    """Columns of Arrow, in few groups of rows: the file's index is held until its end."""

    suffix = "parquet"

    def _open(self, columns: Sequence[tuple[str, str]]) -> None:
        import pyarrow
        import pyarrow.parquet

        self._schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in columns])
        self._writer = pyarrow.parquet.ParquetWriter(str(self._partial), self._schema, compression="zstd")
        self._batches: list[pyarrow.RecordBatch] = []

    def _write(self, rows: Sequence[Row]) -> None:
        import pyarrow

        columns = zip(zip(*rows, strict=True), self._schema, strict=True) if rows else ()
        if arrays := [pyarrow.array(values, field.type) for values, field in columns]:
            self._batches.append(pyarrow.record_batch(arrays, schema=self._schema))
        if len(self._batches) >= _BATCHES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow

        self._writer.write_table(pyarrow.Table.from_batches(self._batches, self._schema), _BATCHES * TOGETHER)
        self._batches = []

    def _close(self) -> None:
        self._flush()
        self._writer.close()


class Written(NamedTuple):
    """What has come of an export."""

    lines: Sequence[str]
    """What was written, and what is not in it."""
    problems: Sequence[str]
    """What of the record could not be read."""


def write(run: Run, folder: Path, kind: type[Table]) -> Written:
    """Write the tables of a run into a folder.

    Raises:
        ExportError: nothing is written.
    """
    _prepare(folder, [folder / f"{name}.{kind.suffix}" for name in ("steps", "collectives")])
    tables: list[Table] = []
    first = last = 0
    problems: list[str] = []
    try:
        try:
            steps = kind(folder, "steps", (*_KEYS, *((each.name, each.kind) for each in STEPS)))
            tables.append(steps)
            of_calls = (*_KEYS, _NUMBER, *((each.name, each.kind) for each in COLLECTIVES))
            collectives = kind(folder, "collectives", of_calls)
            tables.append(collectives)
            first, last = _fill(run, steps, collectives, problems)
            for table in tables:
                table.finish()
        except OSError as problem:
            raise ExportError(f"{folder}: {problem.strerror or problem}") from problem
    except BaseException:
        for table in tables:
            table.drop()
        raise
    lines = [f"{table.file}: {plural(table.rows, 'row')}" for table in tables]
    if first > 1:
        lines.append(f"steps before {first:,} are no longer recorded one by one, and are left out")
    return Written(lines if last else [*lines, "no step is recorded"], problems)


def _prepare(folder: Path, files: Iterable[Path]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ExportError(f"{folder}: {problem.strerror}; give a folder") from problem
    for file in files:
        if os.path.lexists(file):
            raise ExportError(f"{file}: already there; give another folder, or remove it")


def _fill(run: Run, steps: Table, collectives: Table, problems: list[str]) -> tuple[int, int]:
    """Write the rows of both tables, and return the first and the last step; 0 where there is none."""
    first = last = 0
    of_step, of_call = [each.of for each in STEPS], [each.of for each in COLLECTIVES]
    for message in run.steps(problems):
        for step in message.steps:
            keys = message.rank, message.generation, step.step
            steps.add((*keys, *(value(step) for value in of_step)))
            for number, call in enumerate(step.collectives):
                collectives.add((*keys, number, *(value(call) for value in of_call)))
            first, last = min(first or step.step, step.step), max(last, step.step)
    return first, last
