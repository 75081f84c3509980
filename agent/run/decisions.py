"""Actions that either all ranks of a run or none must carry out: each is decided once, in a numbered file.

A controller that dies while it sends a command to one rank after the other would leave some
ranks held and others not, and a collective between them that never ends.  So a decision is a file in the
run directory, created whole and exclusively: the first process to write number N has decided, and every rank
reads the file, with or without a message.  This module does not know the contents of decisions.

Of a run on several hosts, the directory on the host of rank 0 decides.  On every other host the directory is a copy, in
which controllers only propose: the observer there passes a proposal on and copies what was decided.  That a hold lapses
is proposed on all hosts, and decided once all can be told.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from itertools import islice
from pathlib import Path
from typing import Final

from ddptop.agent.run import hosts, states
from ddptop.agent.run.files import private
from ddptop.agent.run.identity import may_live
from ddptop.agent.run.rundir import RunDir, RunDirError

_NUMBER: Final = re.compile("[1-9][0-9]{0,17}")
_PROPOSAL: Final = re.compile(r"\.proposed-([1-9][0-9]{0,17})")
_MOST_ENTRIES: Final = 100_000
RETAINED: Final = 256
"""Newest decisions that stay on disk, for ranks that read late."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
LARGEST: Final = 2048
"""Bytes of a decision at most."""


def are_made_elsewhere(directory: RunDir) -> bool:
    """Say whether the decisions of a run are made on another host: that of rank 0; False where nobody knows."""
    with contextlib.suppress(OSError, RunDirError):
        run, far = directory.read(), hosts.far_members(directory.path)
        # Of a run on one host, the records of its ranks are not read: there may be a thousand.
        return states.has_other_hosts(run, far) and states.is_branch(run, directory.members(), far)
    return False


class Place:
    """Where the decisions of a run are made, as a rank has to know it before it lets a hold lapse."""

    def __init__(self, directory: RunDir) -> None:
        self._directory = directory

    def is_over_hosts(self) -> bool:
        """Say whether the run has other hosts: then its observer decides, which knows whether all can be told."""
        with contextlib.suppress(OSError, RunDirError):
            return states.has_other_hosts(self._directory.read(), hosts.far_members(self._directory.path))
        return False

    def is_deserted(self) -> bool:
        """Say whether decisions are made on this host, and no observer lives that would."""
        with contextlib.suppress(OSError, RunDirError):
            return not may_live(self._directory.read().observer) and not are_made_elsewhere(self._directory)
        return False


class Decisions:
    """The decisions of one run, in order; any process of its user may write the next one, where they are made."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "decisions"

    def newest(self) -> int:
        """Return the number of the last decision, 0 before the first."""
        return max((int(name) for name in self._names() if _NUMBER.fullmatch(name)), default=0)

    def _names(self) -> list[str]:
        try:
            with os.scandir(self._folder) as entries:
                return [entry.name for entry in islice(entries, _MOST_ENTRIES)]
        except OSError:
            return []

    def decide(self, serial: int, content: bytes) -> bool:
        """Make decision `serial`; return False where another process has already made it.

        Raises:
            OSError: nothing can be written there.
        """
        if self.newest() >= serial or not self._create(str(serial), content):
            return False
        with contextlib.suppress(OSError):
            (self._folder / str(serial - RETAINED)).unlink(missing_ok=True)
        return True

    def refusal(self, error: OSError) -> str:
        """Return why nothing can be decided, and what helps."""
        said = f"{self._folder.parent}: {error.strerror}; nothing can be decided there"
        return f"{said}: make room (`df -h`, `df -i`), and ask again" if error.errno in _FULL else said

    def _create(self, name: str, content: bytes) -> bool:
        """Make a file whole and exclusively; return False where it is there already."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        staging = self._folder / f".{name}.{os.urandom(4).hex()}"
        try:
            private.write(staging, content)
            # Unlike a rename, a link does not replace an existing file.
            os.link(staging, self._folder / name)
        except FileExistsError:
            return False
        finally:
            staging.unlink(missing_ok=True)
        return True

    def read(self, serial: int) -> bytes | None:
        """Return the content of decision `serial`, None where there is none yet."""
        try:
            return private.read(self._folder / str(serial))
        except OSError:
            return None

    def has(self, serial: int) -> bool:
        """Say whether decision `serial` was made; takes microseconds."""
        return os.path.lexists(self._folder / str(serial))

    # A copy on another host

    def propose(self, serial: int, content: bytes) -> None:
        """Ask for decision `serial`, unless another process here has asked for one of that number.

        Raises:
            OSError: nothing can be written there.
        """
        self._create(f".proposed-{serial}", content)

    def proposals(self) -> dict[int, bytes]:
        """Return what is proposed here, by number."""
        found = {}
        for name in self._names():
            if proposal := _PROPOSAL.fullmatch(name):
                with contextlib.suppress(OSError):
                    found[int(proposal[1])] = private.read(self._folder / name, LARGEST)
        return dict(sorted(found.items()))

    def withdraw(self, serial: int) -> None:
        """Take a proposal back, because it was answered."""
        with contextlib.suppress(OSError):
            (self._folder / f".proposed-{serial}").unlink(missing_ok=True)

    def copy(self, serial: int, content: bytes) -> None:
        """Write down a decision that was made elsewhere, in place of whatever has its number here.

        Raises:
            OSError: it cannot be written.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        if self.read(serial) != content:
            private.replace(self._folder / str(serial), content)
        with contextlib.suppress(OSError):
            (self._folder / str(serial - RETAINED)).unlink(missing_ok=True)

    def forget_after(self, serial: int) -> None:
        """Remove the decisions after this one, which were not made where decisions are made."""
        for name in self._names():
            if _NUMBER.fullmatch(name) and int(name) > serial:
                with contextlib.suppress(OSError):
                    (self._folder / name).unlink(missing_ok=True)
