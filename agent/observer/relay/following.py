"""The ranks of a run that are listened to: who has come, who is gone, and whose sockets are tried again."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator

from ddptop.agent.run.rundir import Member


class Following:
    """Ranks come from any thread; all else is for the relay's thread."""

    def __init__(self) -> None:
        """Know nobody yet."""
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

    def take(self) -> Iterator[tuple[Member, bool]]:
        """Yield the ranks that have come, with True, and those that are gone."""
        with contextlib.suppress(queue.Empty):
            while True:
                member, lives = self._newcomers.get_nowait()
                if lives:
                    self._members[member.rank] = member
                    yield member, True
                # Another process may have its place already.
                elif self._members.get(member.rank, member).process == member.process:
                    self.refused.pop(member.rank, None)
                    yield member, False

    def is_followed(self, member: Member) -> bool:
        """Say whether only the socket that answers was refused when this process was tried last."""
        return self.refused.get(member.rank) == (member, True)

    def tried(self, member: Member, problem: Exception | None, *, is_followed: bool) -> str:
        """Take note of what came of listening to a rank; return what is new in it, empty where nothing is."""
        before = self.refused.pop(member.rank, None)
        if problem is None:
            return "" if before is None else f"rank {member.rank} is listened to now"
        self.refused[member.rank] = member, is_followed
        is_known = before is not None and before[0].process == member.process
        return "" if is_known else f"not listened to rank {member.rank}: {problem}"

    def refused_of(self, generation: int) -> list[Member]:
        """Return the ranks whose sockets were refused, which may be in order by now; forget earlier generations."""
        self.refused = {rank: each for rank, each in self.refused.items() if each[0].generation >= generation}
        return [member for member, _ in self.refused.values()]
