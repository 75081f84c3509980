"""From the frames of a run to messages: what stands long enough is told once, and once more when it is over. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

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


class _Condition(NamedTuple):
    """Something that is wrong in a frame."""

    key: str
    """The same as long as it is the same thing."""
    kind: str
    kind_of: str
    text: str
    ranks: tuple[int, ...]
    where: str
    line: str
    since: float
    least_s: float
    """Seconds that it has to stand before it is told."""


class _Standing:
    """A condition over some frames."""

    def __init__(self, condition: _Condition, at: float) -> None:
        self.condition = condition
        self.told = False
        self.seen_at = at


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
        self._slow_s = slow_s
        self._host = host
        self._standing: dict[str, _Standing] = {}
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
            return list(self._end(frame, now))
        if frame.unobserved_s is not None:
            # The frame is of before.
            return []
        found = {each.key: each for each in self._conditions(frame) if each.kind in self._kinds}
        messages = list(self._restarts(frame, now))
        for key, condition in found.items():
            standing = self._standing.setdefault(key, _Standing(condition, now))
            standing.condition, standing.seen_at = condition, now
            if not standing.told and now - condition.since >= condition.least_s:
                standing.told = True
                messages.append(self._message(frame, condition, now))
        for key, standing in list(self._standing.items()):
            if key not in found and (not standing.told or now - standing.seen_at >= REST_S):
                del self._standing[key]
                if standing.told:
                    messages.append(self._message(frame, standing.condition, now, resolved=True))
        return messages

    def _conditions(self, frame: Frame) -> Iterator[_Condition]:
        for verdict in frame.verdicts:
            if (kind := _KIND_OF.get(verdict.kind)) is not None:
                yield self._of_verdict(kind, verdict)
        if frame.cause and not any(each.is_the_cause(frame.cause) for each in frame.verdicts):
            ranks = () if frame.cause_rank is None else (frame.cause_rank,)
            since = self._seen_since("death", frame.at)
            where = frame.hosts.name_of(frame.cause_rank)
            yield _Condition("death", "death", "failed", frame.cause, ranks, where, "", since, DEATH_S)
        for host in frame.on_hosts:
            if host.is_unheard:
                key = f"host {host.host}"
                since = self._seen_since(key, frame.at) if host.heard_at is None else host.heard_at
                yield _Condition(
                    key, "death", "host", host.told, host.ranks[:_MOST_RANKS], host.host, "", since, DEATH_S
                )

    def _seen_since(self, key: str, at: float) -> float:
        known = self._standing.get(key)
        return at if known is None else known.condition.since

    def _of_verdict(self, kind: str, verdict: Verdict) -> _Condition:
        known = VERDICT_KINDS.get(verdict.kind)
        whose = "" if known is not None and known.is_of_group else f" {verdict.rank} {verdict.host}"
        hang = verdict.hang
        ranks = () if verdict.rank is None else (verdict.rank,)
        return _Condition(
            f"{verdict.kind}{whose}", kind, verdict.kind if hang is None else hang.kind, verdict.ageless,
            ranks if hang is None else hang.ranks[:_MOST_RANKS], verdict.host,
            verdict.line if hang is None else hang.where, verdict.since_at_ns / 1e9,
            self._slow_s if kind == "slow" else 0.0,
        )  # fmt: skip

    def _restarts(self, frame: Frame, now: float) -> Iterator[Message]:
        """Tell of a death after which the launcher has started the group anew, which may take less than a look."""
        before, self._starts = self._starts, frame.generation
        if before is not None and frame.generation > before and "death" in self._kinds:
            cause, rank = self._cause
            of = f", at most {frame.max_restarts} times" if frame.max_restarts else ""
            text = f"{cause or 'the group has failed'}; restarted as a whole, the {_nth(frame.generation)} time{of}"
            ranks = () if rank is None else (rank,)
            standing = self._standing.pop("death", None)
            since = frame.at if standing is None else standing.condition.since
            resolved = standing is not None and standing.told
            key = "death" if resolved else f"restart {frame.generation}"
            condition = _Condition(key, "death", "restarted", text, ranks, frame.hosts.name_of(rank), "", since, 0.0)
            yield self._message(frame, condition, now, resolved=resolved)
        if frame.cause:
            self._cause = frame.cause, frame.cause_rank
        elif before != frame.generation:
            self._cause = "", None

    def _end(self, frame: Frame, now: float) -> Iterator[Message]:
        if "end" in self._kinds:
            ranks = () if frame.cause_rank is None else (frame.cause_rank,)
            steps = "" if frame.step is None else f" after step {frame.step:,}"
            text = frame.cause or f"{frame.state}{steps}"
            since = frame.ended_at or now
            where = frame.hosts.name_of(frame.cause_rank)
            yield self._message(
                frame, _Condition("end", "end", frame.state, text, ranks, where, "", since, 0.0), now
            )  # fmt: skip

    def _message(self, frame: Frame, condition: _Condition, now: float, *, resolved: bool = False) -> Message:
        return Message(
            run=frame.run, program=frame.program, host=self._host, kind=condition.kind, kind_of=condition.kind_of,
            text=condition.text, resolved=resolved, id=f"{frame.run_id or frame.run}/{condition.key}",
            ranks=condition.ranks, where=condition.where, line=condition.line, since=condition.since, at=now,
            state=frame.state, step=frame.step, attach=f"ddptop attach {self._host}:{frame.run}",
        )  # fmt: skip


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
