"""Commands of onlookers: to single ranks, to the record, and to the observer itself.

A command to a rank is passed on, and where a rank stands is told also of one that does not answer; the recorder answers
questions about the history.  What all ranks are to do is begun here; the observer's main thread ends runs and ranks.
The observer of another host may ask for the earlier records of a rank.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.control.deadline import lateness
from ddptop.agent.observer.actions.actions import Actions
from ddptop.agent.observer.hosts.elsewhere import is_elsewhere
from ddptop.agent.observer.hosts.role import LinkedHosts
from ddptop.agent.observer.inspection.inspections import Inspections
from ddptop.agent.observer.service.fills import Fills
from ddptop.agent.observer.service.forwarding import Forwarding, silence
from ddptop.agent.observer.service.requests import Requests
from ddptop.agent.observer.service.service import Service
from ddptop.agent.record.history.question import Question
from ddptop.agent.record.inbox import Asked
from ddptop.agent.record.recorder import Recorder
from ddptop.agent.run.files import tail
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.wire.frames import HostFrames

_OBEY_S: Final = 0.02
"""Seconds for commands in one turn; the others wait in their socket."""

_LOOKS_S: Final = 3.0
"""Seconds after a question about whole steps in which there may be another one."""
_OF_HEAD: Final = (wire.History, wire.WholeSteps, wire.Act, wire.Cancel)
"""What is not for a rank, and is the head's to answer."""
_BEHIND: Final = 4 << 20
"""Bytes that may have been added to a log since it was asked for last; of more, all but the tail is passed over."""


@dataclass(frozen=True)
class _Answer:
    """The answer of a rank to the observer of another host, which asked for records."""

    service: Service
    requester: bytes
    rank: int
    number: int

    def has_room(self) -> bool:
        return self.service.has_room(self.requester)

    def take(self, payload: bytes) -> bool:
        return self.service.send(self.requester, b"%d" % self.rank, payload)

    def end(self, reply: bytes | None) -> None:
        self.service.send(self.requester, b"%d" % self.rank, reply or wire.encode(silence(self.number, self.rank)))


class Commands:
    """What arrives at the answering socket, handed to the part that carries it out; for use from one thread."""

    def __init__(
        self,
        directory: RunDir,
        service: Service,
        requests: Requests,
        forwarding: Forwarding,
        inspections: Inspections,
        fills: Fills,
        recorder: Recorder,
        actions: Actions,
        hosts: LinkedHosts,
    ) -> None:
        """Prepare.

        Args:
            directory: of the run.
            service: through which the answers go.
            requests: the commands for the observer's main thread.
            forwarding: the commands to single ranks.
            inspections: asks the ranks where they stand.
            fills: asks them for their earlier records.
            recorder: answers questions for the history.
            actions: carries out what all ranks are to do.
            hosts: the other hosts; the head answers where this one is linked to it.
        """
        self._directory = directory
        self._service = service
        self._requests = requests
        self._forwarding = forwarding
        self._inspections = inspections
        self._fills = fills
        self._recorder = recorder
        self._actions = actions
        self._hosts = hosts
        self._queries: list[tuple[bytes, Question]] = []
        self._looked_at: dict[int, float] = {}
        """By rank, when somebody has asked for its whole steps last."""

    def obey(self) -> None:
        """Carry out the commands that have arrived, as far as there is time in one turn."""
        # A question for the history of a large group takes tens of milliseconds.
        until = time.monotonic() + _OBEY_S
        for requester, frames in self._service.received():
            self.carry_out(requester, frames)
            if time.monotonic() >= until:
                return

    def carry_out(self, requester: bytes, frames: list[bytes], ahead_s: float | None = None) -> None:
        """Carry out a command of an onlooker, or of one at another host.

        Args:
            requester: whoever asks.
            frames: the message.
            ahead_s: of a requester at another host, by how much the wall clock there is ahead; None: not known.
        """
        try:
            *to, payload = frames
            command = wire.read_command(payload)
            rank = _rank(to)
        except (ValueError, wire.Unreadable):
            self._service.refused += 1
            return
        if is_elsewhere(requester):
            command = deadline.arriving(command, ahead_s)
        elif (rank is not None or isinstance(command, _OF_HEAD)) and self._hosts.pass_up(requester, rank, command):
            return
        if rank is not None:
            self._pass_on(requester, rank, command, payload)
        elif isinstance(command, wire.Act | wire.Cancel):
            if (late := lateness(command)) is None:
                self._actions.obey(requester, command)
            else:
                self._service.send(requester, wire.encode(wire.Reply(command.id, False, late)))
        elif not isinstance(command, Question):
            self._requests.put(requester, command)
        elif self._service.has_room(requester):
            self._queries.append((requester, command))
            if isinstance(command, wire.WholeSteps):
                self._looked_at |= dict.fromkeys(command.ranks, time.monotonic())
        else:
            reply = wire.Reply(command.id, False, "earlier answers wait; ask again")
            self._service.send(requester, wire.encode(reply))

    def looked_at(self) -> frozenset[int]:
        """Return the ranks of which somebody looks at whole steps."""
        since = time.monotonic() - _LOOKS_S
        self._looked_at = {rank: at for rank, at in self._looked_at.items() if at > since}
        return frozenset(self._looked_at)

    @property
    def has_queries(self) -> bool:
        """Say whether somebody asks for the history: all that has come by now is to be recorded before that."""
        return bool(self._queries)

    def look_back(self, hosts: HostFrames) -> None:
        """Have the recorder answer these questions, of ranks on these hosts: no slow disk holds up the relay."""
        queries, self._queries = self._queries, []
        for requester, query in queries:
            self._recorder.ask(Asked(query, partial(self._requests.reply, requester), hosts))

    def _pass_on(self, requester: bytes, rank: int, command: wire.Command, payload: bytes) -> None:
        if (late := lateness(command)) is not None:
            self._service.answer(requester, rank, wire.Reply(command.id, False, late))
        elif isinstance(command, wire.Inspect):
            self._inspect(requester, rank, command)
        elif isinstance(command, wire.ReadLog) and not self._forwarding.is_elsewhere(rank):
            self._service.answer(requester, rank, self._log_of(rank, command))
        elif not isinstance(command, wire.Fill):
            self._forwarding.forward(requester, rank, command)
        elif not is_elsewhere(requester):
            self._service.answer(requester, rank, wire.Reply(command.id, False, "records are for observers alone"))
        else:
            address = self._directory.address(rank, "cmd")
            answer = _Answer(self._service, requester, rank, command.id)
            if not self._forwarding.is_there(rank):
                answer.end(None)
            elif not self._fills.ask(rank, address, payload, requester, answer):
                reply = wire.Reply(command.id, False, "too many questions wait; ask again", pending=True)
                self._service.answer(requester, rank, reply)

    def _inspect(self, requester: bytes, rank: int, command: wire.Inspect) -> None:
        def answer(found: dict[int, wire.Inspection]) -> None:
            reply = silence(command.id, rank)
            if rank in found:
                reply = wire.Reply(command.id, True, inspection=found[rank])
            self._service.answer(requester, rank, reply)

        self._inspections.ask([rank], answer, stacks=command.stacks, native=command.native, asker=requester)

    def _log_of(self, rank: int, command: wire.ReadLog) -> wire.Reply:
        try:
            found = tail.grown(
                self._directory.output(rank), command.inode or -1, command.offset,
                most=wire.MOST_OF_LOG, tail=command.tail, behind=_BEHIND,
            )  # fmt: skip
        except FileNotFoundError:
            return wire.Reply(command.id, False, "not written yet")
        except OSError as problem:
            return wire.Reply(command.id, False, problem.strerror or type(problem).__name__)
        return wire.Reply(command.id, True, log=found)


def _rank(frames: list[bytes]) -> int | None:
    """Return the rank in the frames before a command, None where the command is for the observer."""
    if not frames:
        return None
    (number,) = frames
    rank = int(number) if number.isdigit() and len(number) <= 5 else -1
    if not 0 <= rank < wire.MOST_RANKS:
        raise ValueError("not the number of a rank")
    return rank
