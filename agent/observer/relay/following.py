"""The ranks of a run that are listened to: who has come, who is gone, and whose sockets are tried again."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable
from typing import Protocol

import zmq

from ddptop.agent.run.rundir import Member, RunDirError


class _Say(Protocol):
    def __call__(self, text: str, level: str = "info", rank: int | None = None) -> None: ...


class Following:
    """Ranks come from any thread; all else is for the relay's thread."""

    def __init__(
        self,
        follow: Callable[[Member], None],
        connect: Callable[[Member], None],
        lose: Callable[[int], None],
        say: _Say,
    ) -> None:
        """Know nobody yet.

        Args:
            follow: uses the socket on which a rank publishes.
            connect: uses the one on which it answers. Both raise `RunDirError` or `zmq.ZMQError` where they cannot.
            lose: does without a rank whose process is gone.
            say: publishes an event.
        """
        self._follow = follow
        self._connect = connect
        self._lose = lose
        self._say = say
        self._newcomers: queue.SimpleQueue[tuple[Member, bool]] = queue.SimpleQueue()
        """Ranks whose process was found, or is gone."""
        self._members: dict[int, Member] = {}
        self.refused: dict[int, tuple[Member, bool]] = {}
        """Ranks of which a socket cannot be used, and whether that holds only for the one that answers."""

    def put(self, member: Member, *, lives: bool) -> None:
        """Take note of a rank whose process was found, or is gone; from any thread."""
        self._newcomers.put((member, lives))

    @property
    def waits(self) -> bool:
        """Say whether there is something for `take`."""
        return not self._newcomers.empty()

    def take(self) -> None:
        """Listen to the ranks that have come, and do without those that are gone."""
        with contextlib.suppress(queue.Empty):
            while True:
                member, lives = self._newcomers.get_nowait()
                if lives:
                    self._members[member.rank] = member
                    self._listen(member)
                # Another process may have its place already.
                elif self._members.get(member.rank, member).process == member.process:
                    self.refused.pop(member.rank, None)
                    self._lose(member.rank)

    def try_again(self, generation: int) -> None:
        """Use the sockets that were refused, if they are in order by now; earlier generations are forgotten."""
        for rank, (member, _) in list(self.refused.items()):
            if member.generation < generation:
                del self.refused[rank]
            else:
                self._listen(member)

    def _listen(self, member: Member) -> None:
        before = self.refused.pop(member.rank, None)
        is_followed = before == (member, True)
        try:
            if not is_followed:
                self._follow(member)
                is_followed = True
            self._connect(member)
        except (RunDirError, zmq.ZMQError) as problem:
            self.refused[member.rank] = member, is_followed
            if before is None or before[0].process != member.process:
                self._say(f"not listened to rank {member.rank}: {problem}", "error")
        else:
            if before is not None:
                self._say(f"rank {member.rank} is listened to now", rank=member.rank)
