"""The record that a rank writes into its run's directory: its process and sockets, and its end.

Only the process of the rank writes it: a forked child has a copy of everything here,
and must not write.  Every field is bounded, so that the record stays readable whatever
texts the script raises.
"""

from __future__ import annotations

import os
import threading
import time
from itertools import product
from typing import Final

import msgspec

from ddptop.agent.rank.faults import Faults
from ddptop.agent.run.files import marks, private
from ddptop.agent.run.rundir import Ended, Member, RunDir
from ddptop.agent.text import clean_line, shorten
from ddptop.agent.wire import GroupCalls

LONGEST_ERROR: Final = 2048
"""Bytes of type and message of the exception that ended the script."""
LONGEST_TRACEBACK: Final = 64 << 10
BRIEF_TRACEBACK: Final = 1536
"""Bytes of the traceback on a full disk: the rest of the block that the record has there is mostly enough for them."""
_OPENING: Final = "Traceback (most recent call last):"
_LONGEST_PATH: Final = 4096
_LONGEST_NAME: Final = 255


class Account:
    """The record of one rank."""

    def __init__(self, directory: RunDir, member: Member, faults: Faults) -> None:
        self._directory = directory
        self._member = msgspec.structs.replace(
            member,
            host=shorten(member.host, _LONGEST_NAME),
            log=None if member.log is None else shorten(member.log, _LONGEST_PATH),
        )
        self._faults = faults
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._over = False
        self.written = False
        """True once the record was written."""

    def begin(self) -> None:
        """Write the record, unless that is done; a failure is counted as a fault, and the call may be repeated.

        When it returns, no other thread is still writing: the script may use up the descriptors afterwards.
        """
        if os.getpid() != self._owner:
            return
        with self._lock:
            if self._over or self.written:
                return
            with self._faults.noted("saying in the run directory that the rank is there"):
                self._write(self._member)
                self.written = True

    def recount(self, generation: int) -> None:
        """Write the record again, of another start of the group; what is not written now is repeated by `begin`."""
        with self._lock:
            self._member = msgspec.structs.replace(self._member, generation=generation)
            self.written = False
        self.begin()

    def withdraw(self) -> None:
        """Remove the record: this process is no rank any more, and does not end as one."""
        with self._lock:
            self._over = True
            self._directory.remove_member(self._member.rank)

    def hand_back(self, before: Member) -> None:
        """Write the record that the rank had before its agent came, which leaves."""
        with self._lock:
            self._over = True
            with self._faults.noted("saying in the run directory that the agent has left"):
                self._write(before)

    def end(
        self,
        exit_code: int | None,
        error: str | None,
        traceback: str | None,
        stopped_by: str | None,
        step: int | None,
        awaits: str = "",
        left_at: str = "",
        calls: GroupCalls | None = None,
    ) -> None:
        """Add the end of the script to the record; on a full disk with the end of the traceback, or without it."""
        if os.getpid() != self._owner:
            return
        ended = Ended(
            time.time_ns(),
            exit_code,
            None if error is None else shorten(error, LONGEST_ERROR),
            None if traceback is None else shorten(traceback, LONGEST_TRACEBACK),
            None if stopped_by is None else clean_line(stopped_by, 200),
            step,
            self._owner,
            clean_line(awaits, 300),
            clean_line(left_at, 300),
            calls,
        )
        brief = None if traceback is None else _shortened(traceback)
        shorter = msgspec.structs.replace(ended, traceback=brief, calls=None)
        bare = msgspec.structs.replace(ended, traceback=None, calls=None)
        with self._lock:
            self._over = True
            for each, attempt in product((ended, shorter, bare), (self._write, self._overwrite)):
                try:
                    attempt(msgspec.structs.replace(self._member, ended=each))
                    self._member = msgspec.structs.replace(self._member, ended=each)
                    return
                except Exception as problem:
                    self._faults.note("saying how the rank ended", problem)

    def wait(self, awaits: str) -> None:
        """Add to the end what the process waits for before it ends, too."""
        with self._lock:
            if self._member.ended is not None:
                ended = msgspec.structs.replace(self._member.ended, awaits=clean_line(awaits, 300))
                self._write(msgspec.structs.replace(self._member, ended=ended))

    def _write(self, member: Member) -> None:
        self._directory.write_member(member)

    def _overwrite(self, member: Member) -> None:
        private.overwrite(marks.owned(self._directory.rank_record(member.rank)), msgspec.json.encode(member))


def _shortened(traceback: str) -> str | None:
    """Return the last of several tracebacks, the end of it where it is long, in whole lines; None where none fits."""
    lines = traceback.rpartition(_OPENING)[2].lstrip("\n").splitlines()
    room, kept = BRIEF_TRACEBACK, len(lines)
    while kept and (room := room - len(lines[kept - 1].encode("utf-8", "replace")) - 1) >= 0:
        kept -= 1
    return "\n".join([_OPENING, *lines[kept:]]) if kept < len(lines) else None
