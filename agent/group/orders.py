"""What the supervisor is told to do: the command socket, and the endings carried out for it.

Each command is one message and gets one reply: done, or refused with the reason.  An ending
takes seconds and runs in a thread, so that the run's state stays on the air meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

import zmq

from ddptop.agent import wire
from ddptop.agent.group import cause, processes
from ddptop.agent.rundir import Run, RunDir

_log = logging.getLogger("ddptop.supervisor")

LINGER_MS: Final = 300
_MOST_A_TURN: Final = 1000
_LONGEST_GRACE_S: Final = 3600.0
_PATIENCE_S: Final = 2.0

Say = Callable[[str, str, "int | None"], None]
"""Makes an event of text, level and rank."""


class Orders:
    """Takes `wire.Kill` and carries it out; passes on what a `wire.Note` tells."""

    def __init__(
        self,
        context: zmq.Context[Any],
        directory: RunDir,
        say: Say,
        tell: Callable[[wire.Event], None] = lambda event: None,
    ) -> None:
        """Bind the command socket; raises `zmq.ZMQError` where that is impossible."""
        self.refused = 0
        """Messages that could not be read."""
        self.killed_by: str | None = None
        """Who asked first for the end of the run."""
        self.ranks_killed_by: dict[int, str] = {}
        """Ranks that were ended on request, and who asked."""
        self.outcome: processes.Outcome | None = None
        self._problem = "not carried out"
        self._directory = directory
        self._say = say
        self._tell = tell
        self._ending: threading.Thread | None = None
        self._rank_endings: list[threading.Thread] = []
        self._waiting: list[tuple[bytes, int]] = []
        self._replies: queue.SimpleQueue[tuple[bytes, wire.Reply]] = queue.SimpleQueue()
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = LINGER_MS
        self.socket.maxmsgsize = wire.MAX_COMMAND_BYTES
        self.socket.bind(directory.address("supervisor", "cmd"))

    @property
    def ending(self) -> bool:
        """Say whether the run is being ended now."""
        return self._ending is not None and self._ending.is_alive()

    def turn(self, run: Run) -> None:
        """Send the replies that are ready and take the commands that have come."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._send(*self._replies.get_nowait())
        with contextlib.suppress(zmq.Again):
            for _ in range(_MOST_A_TURN):
                sender, *rest = self.socket.recv_multipart(zmq.NOBLOCK)
                try:
                    if len(rest) != 1:
                        raise wire.Unreadable("not a command in one frame")
                    command = wire.read_command(rest[0])
                except wire.Unreadable:
                    self.refused += 1
                    continue
                refusal = self._obey(sender, command, run)
                if refusal is not None:
                    self._send(sender, wire.Reply(command.id, False, refusal))

    def close(self, run: Run) -> None:
        """Give the last replies, once the run is over and all traces are gone."""
        for thread in self._rank_endings:
            # The group follows its rank at once; the thread may still be counting.
            thread.join(_PATIENCE_S)
        self.turn(run)
        done = self.outcome is not None and not self.outcome.survivors
        for sender, number in self._waiting:
            self._send(sender, wire.Reply(number, done, self.summary))
        self.socket.close()

    @property
    def summary(self) -> str:
        """Say in one line what the ending has ended."""
        return self.outcome.text if self.outcome else self._problem

    def _obey(self, sender: bytes, command: wire.Command, run: Run) -> str | None:
        """Set about a command, to be answered later, or return why not."""
        if isinstance(command, wire.Note):
            self._tell(command.event)
            self._send(sender, wire.Reply(command.id, True, "told"))
            return None
        if not isinstance(command, wire.Kill):
            return "the supervisor only ends runs; ask the ranks for everything else"
        if not (math.isfinite(command.grace_s) and 0 <= command.grace_s <= _LONGEST_GRACE_S):
            return f"a grace period is 0 to {_LONGEST_GRACE_S:.0f} seconds"
        who = cause.clean(command.who, 100) or "somebody"
        if command.rank is not None and self.killed_by is not None:
            return "the whole run is being killed already"
        if command.rank is not None:
            self._say(f"kill of rank {command.rank} asked for by {who}", "warning", command.rank)
            self.ranks_killed_by.setdefault(command.rank, who)
            thread = threading.Thread(target=self._end_rank, args=(sender, command, run), daemon=True)
            self._rank_endings.append(thread)
            thread.start()
            return None
        self._waiting.append((sender, command.id))
        if self.killed_by is None:
            self.killed_by = who
            self._say(f"kill asked for by {who}", "warning", None)
            self._ending = threading.Thread(target=self._end, args=(run, command.grace_s), daemon=True)
            self._ending.start()
        return None

    def _end(self, run: Run, grace_s: float) -> None:
        try:
            self.outcome = processes.end(self._directory, run, grace_s, self._progress)
        except Exception as error:  # a wall: whoever waits for the reply must get one
            _log.exception("kill")
            self._problem = f"the kill failed: {cause.clean(repr(error))}"

    def _end_rank(self, sender: bytes, command: wire.Kill, run: Run) -> None:
        assert command.rank is not None
        try:
            outcome = processes.end_rank(self._directory, run, command.rank, command.grace_s, self._progress)
            text = f"rank {command.rank}: {outcome.text}; torchrun ends the others"
            reply = wire.Reply(command.id, not outcome.survivors, text)
        except ValueError as error:
            self.ranks_killed_by.pop(command.rank, None)
            reply = wire.Reply(command.id, False, str(error))
        except Exception as error:  # a wall, as above
            _log.exception("kill of a rank")
            reply = wire.Reply(command.id, False, f"the kill failed: {cause.clean(repr(error))}")
        self._replies.put((sender, reply))

    def _progress(self, line: str) -> None:
        self._say(line, "warning", None)

    def _send(self, sender: bytes, reply: wire.Reply) -> None:
        # A ROUTER drops what is for somebody who has left.
        self.socket.send_multipart([sender, wire.encode(reply)])
