"""The history of a run that has ended, asked of its file; each question opens it, and holds it no longer."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from ddptop.agent import wire
from ddptop.agent.record.history.answers import answer
from ddptop.agent.record.history.stored import Stored
from ddptop.agent.run.files.database import DAMAGE, is_locked


class Recorded:
    """The file of a run."""

    def __init__(self, database: Path, world: int) -> None:
        self._uri = f"{database.absolute().as_uri()}?mode=ro"
        self._world = world

    def answer(self, query: wire.History) -> Iterator[wire.HistoryAnswer]:
        """Yield the answer to a question; while another process holds the file, that nothing is complete."""
        found: list[wire.HistoryAnswer]
        try:
            with closing(sqlite3.connect(self._uri, uri=True, timeout=0.0)) as connection:
                # One transaction: an observer may have come back, and fold meanwhile.
                connection.execute("BEGIN")
                found = list(answer(Stored(connection, self._world), query))
        except DAMAGE as problem:
            if is_locked(problem):
                found = [wire.Extent(query.id, complete=False), wire.Reply(query.id, True)]
            else:
                found = [wire.Extent(query.id), wire.Reply(query.id, False, f"the record cannot be read: {problem}")]
        yield from found
