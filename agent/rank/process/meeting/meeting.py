"""A rank's part in the meeting of the observers: one rank of each host takes part, and only of a run on several hosts.

The observer has not the environment of a rank, so that all that it needs of it is written down (`hosts.Meeting`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.process import observing
from ddptop.agent.rank.process.meeting.exchange import Exchange
from ddptop.agent.rank.process.standing import Standing
from ddptop.agent.run import hosts
from ddptop.agent.run.hosts import KEY_FILE_VARIABLE, LISTEN_VARIABLE, Meeting
from ddptop.agent.run.rundir import RunDir

_WRAPPED: Final = 16
"""Stores around a store at most."""

_Tell = Callable[[str, str], None]


class Participant:
    """The part of one rank."""

    def __init__(
        self,
        directory: RunDir,
        standing: Standing,
        environment: Mapping[str, str],
        faults: Faults,
        tell: _Tell,
        generation: int = 0,
    ) -> None:
        """Prepare; nothing is read or written.

        Args:
            directory: of the run.
            standing: of this rank.
            environment: of this process.
            faults: receives failures.
            tell: publishes a line and its level as an event of the rank.
            generation: restarts of its group, as they were counted on this host.
        """
        self._directory = directory
        self._standing = standing
        self._environment = environment
        self._faults = faults
        self._tell_event = tell
        self._generation = generation
        self._owner = os.getpid()
        self._due = 0 in (standing.local_rank, standing.rank) and standing.may_spread(environment)
        self._record = Meeting(
            master=environment.get("MASTER_ADDR", ""),
            listen=environment.get(LISTEN_VARIABLE, ""),
            key_file=os.path.abspath(file) if (file := environment.get(KEY_FILE_VARIABLE, "")) else "",
        )
        self._exchange: Exchange | None = None
        self._starts = hosts.Starts(directory.path) if standing.may_spread(environment) else None

    def begin(self) -> None:
        """Write down what the observer needs, before it starts; a failure is counted as a fault."""
        if self._due:
            self._write(self._record)

    def prepare(self, torch: Any) -> None:
        """Meet the others before the ranks do, where the store is that of torchrun and exists already."""
        if self._due and self._environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            port = self._environment.get("MASTER_PORT", "")
            if self._record.master and port.isdecimal():
                self._meet((self._record.master, int(port)), torch.distributed.TCPStore)

    def joined(self, torch: Any) -> None:
        """Meet the others in the store in which the ranks have just met."""
        if not self._due or os.getpid() != self._owner:
            return
        if self._standing.local_world is None and len(self._directory.members()) >= self._standing.world:
            # All have enrolled by now, and all are here.
            self._due = False
            return
        where = _place_of(torch.distributed.distributed_c10d._get_default_store())
        if where is not None:
            if not self._record.master:
                self._record = Meeting(where[0], self._record.listen, self._record.key_file)
                self._write(self._record)
            self._meet(where, torch.distributed.TCPStore)
        elif not self._record.key_file:
            self._tell(f"its ranks do not meet in a TCPStore, and there is no {KEY_FILE_VARIABLE}")

    def counted(self) -> int:
        """Return the number of restarts as another host counts them that has seen more of them; otherwise 0."""
        return 0 if self._starts is None else self._starts.count()

    def end(self) -> None:
        """Stop; where a call into the store hangs, that takes some seconds."""
        if self._exchange is not None and os.getpid() == self._owner:
            self._exchange.stop()

    def _meet(self, where: tuple[str, int], kind: Any) -> None:
        if self._exchange is not None and self._exchange.runs:
            # The script's group may have another store than torchrun, and the first serves as well.
            return
        self._exchange = Exchange(
            self._directory,
            head=self._standing.rank == 0,
            generation=self._generation,
            where=where,
            kind=kind,
            tell=self._tell,
            watch=functools.partial(observing.replace_lost, self._directory, self._faults),
        )
        self._exchange.start()

    def _tell(self, why: str) -> None:
        """Note why the hosts are not linked, for all who read the run directory, and as an event."""
        record = Meeting(self._record.master, self._record.listen, self._record.key_file, why)
        self._write(record)
        if why:
            self._tell_event(f"the hosts of this run are not linked: {why}", "warning")

    def _write(self, record: Meeting) -> None:
        try:
            hosts.write_meeting(self._directory.path, record)
        except Exception as error:
            self._faults.note("writing down how the hosts meet", error)


def _place_of(store: Any) -> tuple[str, int] | None:
    """Return host and port of a store, or of the one inside it; None where that is no TCPStore."""
    for _ in range(_WRAPPED):
        host, port = getattr(store, "host", None), getattr(store, "port", None)
        if isinstance(host, str) and isinstance(port, int):
            return host, port
        store = getattr(store, "underlying_store", None)
    return None
