"""`ddptop logs`: what the ranks wrote, once or as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ddptop.agent.group import census
from ddptop.agent.rundir import ENDED_STATES, RunDir
from ddptop.agent.text import clean

POLL_S = 0.1
LINE_BYTES = 64 << 10
"""A longer line is cut into pieces, so that no log can fill the memory."""


def show(directory: RunDir, rank: int | None, *, follow: bool, say: Callable[[str], None]) -> None:
    """Print the log of a rank, or of all ranks with the rank before each line."""
    tails = [Tail(path, label) for path, label in _sources(directory, rank)]
    while True:
        over = not follow or census.survey(directory).state in ENDED_STATES
        for tail in tails:
            for line in tail.lines():
                say(line)
        if over:
            return
        time.sleep(POLL_S)


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
    """The lines of a growing file, from its beginning."""

    def __init__(self, path: Path, label: str) -> None:
        self._path = path
        self._label = label
        self._file: BinaryIO | None = None
        self._partial = b""

    def lines(self) -> Iterator[str]:
        """Yield the complete lines that have been added since the last call, cleaned."""
        if self._file is None:
            try:
                self._file = self._path.open("rb")
            except OSError:
                return
        while piece := self._file.readline(LINE_BYTES):
            self._partial += piece
            if self._partial.endswith(b"\n") or len(self._partial) >= LINE_BYTES:
                line, self._partial = self._partial, b""
                yield self._label + clean(line.decode(errors="replace").rstrip("\r\n"), LINE_BYTES)
