"""What diagnoses have in common: the ranks that they are of, steps that they are made over, and what came of them."""

from __future__ import annotations

import contextlib
import os
import shutil
from abc import abstractmethod
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from ddptop.agent import wire
from ddptop.agent.observer.actions.ahead import Ahead
from ddptop.agent.observer.actions.polled import PolledRanks
from ddptop.agent.record import diagnoses
from ddptop.agent.text import ranks_in_spans, size
from ddptop.agent.wire.refusals import Refused

MOST_RANKS: Final = 64
"""Ranks that are asked at most: nobody reads more at once."""
_CANCEL_S: Final = 0.5
"""Seconds that ranks have to answer that they do not go on."""

_Found = TypeVar("_Found")


class Diagnosed(NamedTuple):
    """A diagnosis that is kept with the run."""

    folder: Path
    finding: str
    """Its most important sentence."""


class OverSteps(Ahead[_Found]):
    """A diagnosis over some steps: the ranks work on it behind the boundary."""

    silent_s = 30.0
    """While a rank writes or counts, no other thread of it may run."""

    def __init__(self, folder: Path, steps: int) -> None:
        """Ask for the diagnosis that is kept in this numbered folder, over so many steps."""
        self.folder = folder
        self.number = int(folder.name)
        self.steps = steps
        self.token = ""
        """Of the attempt that was made last."""

    def command(self, boundary: int) -> wire.Command:
        """Return the question for the steps behind this one."""
        self.token = os.urandom(8).hex()
        return self.over(boundary + 1)

    @abstractmethod
    def over(self, first: int) -> wire.Command:
        """Return the question for the steps from this one on."""

    @abstractmethod
    def cancelling(self) -> wire.Command:
        """Return the command after which no rank goes on with what was asked for last."""

    @contextlib.contextmanager
    def whole(self, ranks: PolledRanks) -> Iterator[None]:
        """Leave nothing of the diagnosis where the block raises: no rank goes on with it, and its folder is removed."""
        try:
            yield
        except BaseException:
            if self.token:
                # Whoever does not answer now is not waited for.
                ranks.send(self.cancelling(), ranks.ranks, _CANCEL_S)
            diagnoses.remove(self.folder)
            raise


def check_room(folder: Path, least: int) -> None:
    """Raise `Refused` where less than so many bytes are free at a folder."""
    if shutil.disk_usage(folder).free < least:
        raise Refused(f"no room: less than {size(least)} is free at {folder}")


def chosen(ranks: PolledRanks, command: wire.Act, accused: Collection[int] | None, nobody: str) -> list[int]:
    """Return the ranks that a diagnosis is of.

    Args:
        ranks: those of the run that live.
        command: which ranks are asked for.
        accused: those that a verdict accuses, and the ones they are compared with; None: none is accused.
        nobody: that none is accused, in words.

    Raises:
        Refused: there are no such ranks, or too many.
    """
    if command.culprit and accused is None and command.ranks is None:
        raise Refused(f"{nobody}; say which ranks: --ranks 0,1 or --ranks all")
    wanted = accused if command.culprit and accused is not None else command.ranks
    found = sorted(ranks.ranks if wanted is None else set(wanted))
    if not found:
        raise Refused("no rank is named; say which ranks: --ranks 0,1 or --ranks all")
    if missing := set(found) - set(ranks.ranks):
        raise Refused(f"{ranks_in_spans(missing)}: not in this run, or ended")
    if len(found) > MOST_RANKS:
        raise Refused(f"{len(found)} ranks are too many at once; say up to {MOST_RANKS}")
    return found
