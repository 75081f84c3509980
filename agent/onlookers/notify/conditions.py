"""From the frames of a run to messages: what stands long enough is told once, and once more when it is over. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from ddptop.agent.client.frame import Frame
from ddptop.agent.onlookers.notify.messages import Message
from ddptop.agent.wire import VERDICT_KINDS, Verdict
from ddptop.agent.wire.frames import ENDED

DEATH_S: Final = 10.0
"""Seconds that a death stands before it is told by itself: most runs end of it, and the end tells of it."""
REST_S: Final = 60.0
"""Seconds for which something has to be gone before it is over: what comes back by then is the same."""
_KIND_OF: Final = {
    "hang": "hang", "health": "nan", "diverged": "nan", "slow_rank": "slow", "slow_host": "slow", "no_core": "slow",
    "memory_creep": "memory",
}  # fmt: skip
"""The kind of message by the kind of verdict; others are no news at night."""
_MOST_RANKS: Final = 64
"""Ranks that one message names."""


@dataclass
class _Standing:
    """Something that is wrong, over some frames."""

    message: Message
    """As of the newest frame that has it."""
    seen_at: float
    told: bool = False


class Conditions:
    """What is wrong with one run, and what of it was told."""

    def __init__(self, kinds: Collection[str], slow_s: float, host: str) -> None:
        """Know of nothing yet.

        Args:
            kinds: what is told, of `settings.KINDS`.
            slow_s: seconds for which a rank has to be slow.
            host: this machine, as others name it.
        """
        self._kinds = kinds
        self._least_s = {"death": DEATH_S, "slow": slow_s}
        """By kind, seconds that it has to stand before it is told."""
        self._host = host
        self._standing: dict[str, _Standing] = {}
        """By the id of the messages, which is the same as long as it is the same thing."""
        self._starts: int | None = None
        """How often the group had been restarted by the last frame."""
        self._cause: tuple[str, int | None] = "", None
        """The newest cause of a failure."""
        self._is_over = False

    def look(self, frame: Frame, now: float) -> list[Message]:
        """Return what is to be told after this frame, at this moment in seconds since the epoch."""
        if self._is_over:
            return []
        if frame.state in ENDED:
            self._is_over = True
            return [self._end(frame, now)] if "end" in self._kinds else []
        if frame.unobserved_s is not None:
            # The frame is of before.
            return []
        found = {each.id: each for each in self._found(frame, now) if each.kind in self._kinds}
        messages = list(self._restarts(frame, now))
        for key, message in found.items():
            standing = self._standing.setdefault(key, _Standing(message, now))
            standing.message, standing.seen_at = message, now
            if not standing.told and now - (message.since or now) >= self._least_s.get(message.kind, 0.0):
                standing.told = True
                messages.append(message)
        for key, standing in list(self._standing.items()):
            if key not in found and (not standing.told or now - standing.seen_at >= REST_S):
                del self._standing[key]
                if standing.told:
                    messages.append(
                        replace(standing.message, resolved=True, at=now, state=frame.state, step=frame.step)
                    )
        return messages

    def _found(self, frame: Frame, now: float) -> Iterator[Message]:
        """Yield what is wrong in a frame."""
        for verdict in frame.verdicts:
            if (kind := _KIND_OF.get(verdict.kind)) is not None:
                yield self._of_verdict(frame, kind, verdict, now)
        if frame.cause and not any(each.is_the_cause(frame.cause) for each in frame.verdicts):
            yield self._death(frame, "death", "failed", frame.cause, frame.cause_rank, now)
        for host in frame.on_hosts:
            if host.is_unheard:
                yield self._message(
                    frame, f"host {host.host}", now, kind="death", kind_of="host", text=host.told, ranks=host.ranks,
                    where=host.host, since=host.heard_at,
                )  # fmt: skip

    def _of_verdict(self, frame: Frame, kind: str, verdict: Verdict, now: float) -> Message:
        known, hang = VERDICT_KINDS.get(verdict.kind), verdict.hang
        whose = "" if known is not None and known.is_of_group else f" {verdict.rank} {verdict.host}"
        ranks = () if verdict.rank is None else (verdict.rank,)
        return self._message(
            frame, f"{verdict.kind}{whose}", now, kind=kind, kind_of=verdict.kind if hang is None else hang.kind,
            text=verdict.ageless, ranks=ranks if hang is None else hang.ranks, where=verdict.host,
            line=verdict.line if hang is None else hang.where, since=verdict.since_at_ns / 1e9,
        )  # fmt: skip

    def _restarts(self, frame: Frame, now: float) -> Iterator[Message]:
        """Tell of a death after which the launcher has started the group anew, which may take less than a look."""
        before, self._starts = self._starts, frame.generation
        if before is not None and frame.generation > before and "death" in self._kinds:
            cause, rank = self._cause
            of = f", at most {frame.max_restarts} times" if frame.max_restarts else ""
            text = f"{cause or 'the group has failed'}; restarted as a whole, the {_nth(frame.generation)} time{of}"
            told = self._death(frame, "death", "restarted", text, rank, now)
            standing = self._standing.pop(told.id, None)
            if standing is not None and standing.told:
                yield replace(told, resolved=True)
            else:
                yield replace(told, id=self._id(frame, f"restart {frame.generation}"))
        if frame.cause:
            self._cause = frame.cause, frame.cause_rank
        elif before != frame.generation:
            self._cause = "", None

    def _end(self, frame: Frame, now: float) -> Message:
        steps = "" if frame.step is None else f" after step {frame.step:,}"
        text = frame.cause or f"{frame.state}{steps}"
        told = self._death(frame, "end", frame.state, text, frame.cause_rank, now)
        return replace(told, kind="end", since=frame.ended_at or now)

    def _death(self, frame: Frame, key: str, kind_of: str, text: str, rank: int | None, now: float) -> Message:
        ranks, where = () if rank is None else (rank,), frame.hosts.name_of(rank)
        return self._message(frame, key, now, kind="death", kind_of=kind_of, text=text, ranks=ranks, where=where)

    def _message(
        self, frame: Frame, key: str, now: float, *, ranks: tuple[int, ...], since: float | None = None, **known: Any
    ) -> Message:
        """Return a message on this frame; without a `since` it is since it was seen first."""
        id_ = self._id(frame, key)
        if since is None:
            before = self._standing.get(id_)
            since = frame.at if before is None else before.message.since
        return Message(
            run=frame.run, program=frame.program, host=self._host, id=id_, ranks=ranks[:_MOST_RANKS], since=since,
            at=now, state=frame.state, step=frame.step, attach=f"ddptop attach {self._host}:{frame.run}", **known,
        )  # fmt: skip

    @staticmethod
    def _id(frame: Frame, key: str) -> str:
        return f"{frame.run_id or frame.run}/{key}"


def _nth(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number}{ending}"


def speaks(frame: Frame, here: Collection[int]) -> bool:
    """Say whether the notifier of this host is the one that tells: of the first host of the run that is heard.

    Args:
        frame: the run, as this host knows it.
        here: the ranks of this host.
    """
    heard = [host for host in frame.on_hosts if not host.is_unheard] or frame.on_hosts
    return not heard or not set(heard[0].ranks).isdisjoint(here)
