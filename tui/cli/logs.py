"""`ddptop logs`: what the ranks wrote, once or as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ddptop.agent.observer.status import survey
from ddptop.agent.run.files import sparse
from ddptop.agent.run.files.private import open_plain
from ddptop.agent.run.rundir import ENDED_STATES, RunDir
from ddptop.agent.text import clean

POLL_S = 0.1
LINE_BYTES = 64 << 10
"""A longer line is cut into pieces, so that no log can fill the memory."""


def show(directory: RunDir, rank: int | None, *, follow: bool, say: Callable[[str], None]) -> None:
    """Print the log of a rank, or of all ranks with the rank before each line."""
    tails = [Tail(path, label) for path, label in _sources(directory, rank)]
    try:
        while True:
            over = not follow or survey.look(directory).state in ENDED_STATES
            for tail in tails:
                for line in tail.lines():
                    say(line)
            if over:
                return
            time.sleep(POLL_S)
    finally:
        for tail in tails:
            tail.close()


def exists(directory: RunDir) -> bool:
    """Say whether the run's output goes to files at all."""
    return directory.read().launched


def _sources(directory: RunDir, rank: int | None) -> Iterator[tuple[Path, str]]:
    if rank is not None:
        yield directory.rank_log(rank), ""
        return
    run = directory.read()
    for each in range(run.world):
        yield directory.rank_log(each), f"[{each}] "
    yield directory.torchrun_log, f"[{run.leader}] "


class Tail:
    """The lines of a growing file, from its beginning; one that says so where its middle was cut out."""

    def __init__(self, path: Path, label: str) -> None:
        self._path = path
        self._label = label
        self._file: BinaryIO | None = None
        self._position = 0
        self._partial = b""

    def lines(self) -> Iterator[str]:
        """Yield the complete lines that have been added since the last call, cleaned."""
        if self._file is None:
            try:
                self._file = open_plain(self._path)
            except OSError:
                return
        while (piece := sparse.read(self._file.fileno(), self._position, LINE_BYTES)).data:
            self._position = piece.position + len(piece.data)
            if piece.skipped:
                yield from self._rest()
                yield self._label + sparse.told(piece.skipped)
            *whole, self._partial = (self._partial + piece.data).split(b"\n")
            for line in whole:
                yield self._cleaned(line)
            if len(self._partial) >= LINE_BYTES:
                yield from self._rest()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rest(self) -> Iterator[str]:
        """Yield what there is of a line."""
        line, self._partial = self._partial, b""
        if line:
            yield self._cleaned(line)

    def _cleaned(self, line: bytes) -> str:
        return self._label + clean(line.decode(errors="replace").rstrip("\r"), 2 * LINE_BYTES)
