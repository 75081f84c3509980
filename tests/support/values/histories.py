"""The history that an observer records, and an onlooker that asks it, both in the process of the test."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Iterator, Sequence

import numpy as np

from ddptop.agent import wire
from ddptop.agent.client.history.asked import EDGE_S
from ddptop.agent.client.history.history import History
from ddptop.agent.rank.records.digest import Digest
from ddptop.agent.record import recording
from ddptop.agent.record.history.answers import answer
from ddptop.agent.record.history.question import Question, nothing
from ddptop.agent.record.history.series import Floats, Series, Whole
from ddptop.agent.record.history.stored import Writer
from ddptop.agent.wire.frames import NO_HOSTS, HostFrames
from ddptop.agent.wire.steps.numbers import WIDTHS_S


class Kept:
    """A history in a file of the memory: what a test lets ranks tell is written when it is asked."""

    def __init__(self, world: int) -> None:
        """Know of a run that has not done a step."""
        self.world = world
        self.is_read = True
        """False: the answer is that of an observer that has not read its file yet."""
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.execute("CREATE TABLE steps(rank, generation, first_seq, last_seq, payload)")
        self.writer = Writer(self._connection, world)
        self.rows = self.writer.rows

    def take(self, rank: int, *steps: wire.Step, generation: int = 0) -> None:
        """Let a rank complete steps."""
        message = wire.Steps(rank, steps, generation)
        # No message has numbers that are too large for it.
        with contextlib.suppress(OverflowError):
            self._connection.execute(*recording.row(message, wire.encode(message)))
        if self.world <= wire.EACH_RECORD:
            self.rows.steps(rank, steps, generation)
            return
        for step in steps:
            digest = Digest(rank)
            digest.add(step)
            summary = digest.close()
            assert summary is not None
            self.rows.summary(summary)

    def write(self) -> None:
        """Write what was told as the recorder does."""
        if not self.rows:
            return
        self.writer.settle()
        self.writer.write()
        self.writer.written()
        while self.writer.fold(1 << 40):
            pass

    def answer(self, query: Question, hosts: HostFrames = NO_HOSTS) -> Iterator[wire.HistoryAnswer]:
        """Yield the answer to a question."""
        if not self.is_read:
            yield from nothing(query, wire.Reply(query.id, True), complete=False)
            return
        self.write()
        yield from answer(self.writer, query, hosts)

    def span(self, rank: int) -> tuple[int, int] | None:
        """Return the first and the last step of a rank."""
        return self.writer.span([rank])

    def read_many(self, ranks: Sequence[int], metric: str, first: float, last: float) -> tuple[Whole, Series]:
        """Return whose each bucket is, and a metric of all ranks: what is held, not folded to columns."""
        self.write()
        return self.writer.by_step(metric, math.floor(first), math.ceil(min(last, 1 << 53)))

    def read(self, rank: int, metric: str, first: float = 0, last: float = math.inf) -> Series:
        """Return a metric of a rank, in the order of its steps."""
        whose, found = self.read_many([rank], metric, first, last)
        series = found.part(whose == rank)
        return Series(*(column[np.argsort(series.steps, kind="stable")] for column in series.columns))

    def window(self, metric: str, level: int, last: int, count: int, rank: int | None = None) -> Floats:
        """Return a number over the `count` columns up to number `last`, of all ranks or of one."""
        self.write()
        ranks = range(self.world) if rank is None else [rank]
        return self.writer.by_time(metric, last - count + 1, last + 1, WIDTHS_S[level], ranks)


class RecordedHistory(History):
    """A history whose questions are answered at once, from what the test lets the ranks tell."""

    def __init__(self, world: int) -> None:
        """Know of a run that has not done a step."""
        self._now = 0.0
        self.kept = Kept(world)
        """What the observer has."""
        super().__init__(world, lambda: self._now, self.kept.answer)
        self.catch_up()

    def take(self, rank: int, step: wire.Step) -> None:
        """Let a rank complete a step; views see its numbers after `catch_up`."""
        self.kept.take(rank, step)

    def take_memory(self, rank: int, at_ns: int, memory_bytes: int) -> None:
        """Let a rank tell of its memory."""
        self.kept.rows.memory(rank, at_ns, memory_bytes)

    def catch_up(self) -> None:
        """Let so much time go by that the newest numbers are asked for, and take in the answers."""
        self._now += EDGE_S
        self.asked.ask_source()
