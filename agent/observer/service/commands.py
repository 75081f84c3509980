"""Commands of onlookers: to single ranks, for their earlier records, to the history, and to the observer itself.

A command to a rank is passed on, one for records becomes a question of its own, and where a rank stands is told also
of one that does not answer; the observer's main thread carries out the commands for the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.control.deadline import lateness
from ddptop.agent.observer.hosts import askers
from ddptop.agent.observer.inspection.inspections import Inspections
from ddptop.agent.observer.record.recorder import Recorder
from ddptop.agent.observer.service.fills import Fills
from ddptop.agent.observer.service.forwarding import Forwarding, silence
from ddptop.agent.observer.service.requests import Requests
from ddptop.agent.observer.service.service import Door
from ddptop.agent.run.files.growth import grown
from ddptop.agent.run.rundir import RunDir

_OBEY_S: Final = 0.02
"""Seconds for commands in one turn; the others wait in their socket."""

_BEHIND: Final = 4 << 20
"""Bytes that may have been added to a log since it was asked for last; of more, all but the tail is passed over."""


@dataclass(frozen=True)
class _Answer:
    """The answer of a rank to an onlooker who asked for records."""

    door: Door
    asker: bytes
    rank: int
    number: int

    def has_room(self) -> bool:
        return self.door.has_room(self.asker)

    def take(self, payload: bytes) -> bool:
        return self.door.send(self.asker, b"%d" % self.rank, payload)

    def end(self, reply: bytes | None) -> None:
        self.door.send(self.asker, b"%d" % self.rank, reply or wire.encode(silence(self.number, self.rank)))


class Commands:
    """What arrives at the answering socket, handed to the part that carries it out; for use from one thread."""

    def __init__(
        self,
        directory: RunDir,
        door: Door,
        requests: Requests,
        forwarding: Forwarding,
        inspections: Inspections,
        fills: Fills,
        recorder: Recorder,
        take_in: Callable[[], None],
        pass_up: Callable[[bytes, int | None, wire.Command], bool] = lambda asker, rank, command: False,
    ) -> None:
        """Prepare.

        Args:
            directory: of the run.
            door: through which the answers go.
            requests: the commands for the observer's main thread.
            forwarding: the commands to single ranks.
            inspections: asks the ranks where they stand.
            fills: asks them for their earlier records.
            recorder: answers questions about the history.
            take_in: called before a question about the history is answered, for what has just come.
            pass_up: hands a question of an onlooker here to the head, on another host; returns False where it is to be
                answered here.
        """
        self._directory = directory
        self._door = door
        self._requests = requests
        self._forwarding = forwarding
        self._inspections = inspections
        self._fills = fills
        self._recorder = recorder
        self._take_in = take_in
        self._pass_up = pass_up

    def obey(self) -> None:
        """Carry out the commands that have arrived, as far as there is time in one turn."""
        # A question for the history of a large group takes tens of milliseconds.
        until = time.monotonic() + _OBEY_S
        for asker, frames in self._door.received():
            self.carry_out(asker, frames)
            if time.monotonic() >= until:
                return

    def send_replies(self) -> None:
        """Send what the observer's main thread and the recorder have answered."""
        for asker, answer in self._requests.replies():
            if askers.is_elsewhere(asker):
                # A host that has ended its ranks, or is told of the end, sends what they have published last first.
                self._take_in()
            self._door.send(asker, wire.encode(answer))

    def carry_out(self, asker: bytes, frames: list[bytes], ahead_s: float | None = None) -> None:
        """Carry out a command of an onlooker, or of one at another host.

        Args:
            asker: whoever asks.
            frames: the message.
            ahead_s: of an asker at another host, by how much the wall clock there is ahead; None: not known.
        """
        try:
            *to, payload = frames
            command = wire.read_command(payload)
            rank = _rank(to)
        except (ValueError, wire.Unreadable):
            self._door.refused += 1
            return
        if askers.is_elsewhere(asker):
            command = deadline.arriving(command, ahead_s)
        elif (rank is not None or isinstance(command, wire.History)) and self._pass_up(asker, rank, command):
            return
        if rank is not None:
            self._pass_on(asker, rank, command, payload)
        elif isinstance(command, wire.History):
            self._look_back(asker, command)
        else:
            self._requests.put(asker, command)

    def _look_back(self, asker: bytes, query: wire.History) -> None:
        if not self._door.has_room(asker):
            self._door.send(asker, wire.encode(wire.Reply(query.id, False, "earlier answers wait; ask again")))
            return
        self._take_in()
        # On its own thread, so that no slow disk holds up the relay.
        self._recorder.ask(query, partial(self._requests.reply, asker))

    def _pass_on(self, asker: bytes, rank: int, command: wire.Command, payload: bytes) -> None:
        if (late := lateness(command)) is not None:
            self._door.answer(asker, rank, wire.Reply(command.id, False, late))
        elif isinstance(command, wire.Inspect):
            self._inspect(asker, rank, command)
        elif isinstance(command, wire.ReadLog) and not self._forwarding.is_elsewhere(rank):
            self._door.answer(asker, rank, self._log_of(rank, command))
        elif not isinstance(command, wire.Fill):
            self._forwarding.forward(asker, rank, command)
        else:
            address = self._directory.address(rank, "cmd")
            answer = _Answer(self._door, asker, rank, command.id)
            if not self._forwarding.is_there(rank):
                answer.end(None)
            elif not self._fills.ask(rank, address, payload, asker, answer):
                reply = wire.Reply(command.id, False, "too many questions wait; ask again", pending=True)
                self._door.answer(asker, rank, reply)

    def _inspect(self, asker: bytes, rank: int, command: wire.Inspect) -> None:
        def answer(found: dict[int, wire.Inspection]) -> None:
            reply = silence(command.id, rank)
            if rank in found:
                reply = wire.Reply(command.id, True, inspection=found[rank])
            self._door.answer(asker, rank, reply)

        self._inspections.ask([rank], answer, stacks=command.stacks, native=command.native, asker=asker)

    def _log_of(self, rank: int, command: wire.ReadLog) -> wire.Reply:
        try:
            found = grown(
                self._directory.rank_log(rank), command.inode or -1, command.offset,
                most=wire.MOST_OF_LOG, tail=command.tail, behind=_BEHIND,
            )  # fmt: skip
        except FileNotFoundError:
            return wire.Reply(command.id, False, "not written yet")
        except OSError as problem:
            return wire.Reply(command.id, False, problem.strerror or type(problem).__name__)
        return wire.Reply(command.id, True, log=None if found is None else wire.LogPiece(*found))


def _rank(frames: list[bytes]) -> int | None:
    """Return the rank in the frames before a command, None where the command is for the observer."""
    if not frames:
        return None
    (number,) = frames
    rank = int(number) if number.isdigit() and len(number) <= 5 else -1
    if not 0 <= rank < wire.MOST_RANKS:
        raise ValueError("not the number of a rank")
    return rank
