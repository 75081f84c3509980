"""`ddptop logs`: the output of the ranks, once or as it is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ddptop.agent.observer.status import survey
from ddptop.agent.run.files.tail import Follower
from ddptop.agent.run.rundir import ENDED_STATES, RunDir
from ddptop.agent.text import clean

POLL_S = 0.1
LINE_BYTES = 64 << 10
"""A longer line is cut into pieces, so that no log can fill the memory."""


def show(
    directory: RunDir, rank: int | None, *, follow: bool, say: Callable[[str], None], note: Callable[[str], None]
) -> None:
    """Print the log of a rank, or of all ranks with the rank before each line; `note` that there is nothing."""
    logs = [(Follower(path), label) for path, label in _sources(directory, rank)]
    said = noted = False
    while True:
        ended = survey.look(directory).state in ENDED_STATES
        over = ended or not follow
        for log, label in logs:
            for line in lines(log, label):
                said = True
                say(line)
            if over and log.rest:
                said = True
                say(label + _text(log.rest))
        if not said and not noted:
            noted = True
            note(_silence(rank, ended=ended, follow=follow))
        if over:
            return
        time.sleep(POLL_S)


def _silence(rank: int | None, *, ended: bool, follow: bool) -> str:
    who = "no rank" if rank is None else f"rank {rank}"
    did = "printed" if ended else "has printed"
    what = f"{who} {did} {'anything' if rank is None else 'nothing'}{'' if ended else ' yet'}"
    return f"{what}; waiting for it" if follow and not ended else what


def exists(directory: RunDir) -> bool:
    """Say whether the run's output goes to files."""
    return directory.read().launched


def _sources(directory: RunDir, rank: int | None) -> Iterator[tuple[Path, str]]:
    if rank is not None:
        yield directory.rank_log(rank), ""
        return
    run = directory.read()
    for each in range(run.world):
        yield directory.rank_log(each), f"[{each}] "
    yield directory.torchrun_log, f"[{run.leader}] "


def lines(log: Follower, label: str) -> Iterator[str]:
    """Yield the lines of a log that have ended since the last call, clean and behind `label`."""
    while (ended := _read(log)) is not None:
        if len(log.rest) >= LINE_BYTES:
            ended.append(log.rest)
            log.rest = b""
        for line in ended:
            yield label + _text(line)


def _text(line: bytes) -> str:
    return clean(line.decode(errors="replace").rstrip("\r"), 2 * LINE_BYTES)


def _read(log: Follower) -> list[bytes] | None:
    try:
        return log.read(LINE_BYTES)
    except FileNotFoundError:
        # It is not written yet, or was removed with its run.
        return None
    except OSError:
        # Half a log is not told as a whole one.
        if log.begun:
            raise
        return None
