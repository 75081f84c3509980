"""What a controller does with a group: pause, step, checkpoint, stop, resume. Pure: acts through `Group`.

Key, shell verb and a signal from outside all end here.  An action returns one line on what was
done, or raises `Refused` with the reason; a refused one leaves no rank held.  The group is held
under a lease until the action is decided, so that it goes on by itself if the controller dies.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol

from ddptop.agent import wire
from ddptop.agent.wire import Command, Reply

ANSWER_S: Final = 2.0
"""A rank's agent answers within milliseconds, also while its training thread is busy."""
PATIENCE_S: Final = 60.0
"""How long a pause waits for the slowest rank to come to the step, and a step for the next one."""
LEASE_S: Final = 4.0
"""How long a hold outlives its controller."""
RENEW_S: Final = 1.0
LEAVE_S: Final = 30.0
"""How long a script may take to clear up after it was stopped."""
FARTHEST: Final = 64
"""Ranks of one group are a step apart, a few where the device lags behind; more than this is no common count."""

_ids = count(1)


class Refused(Exception):
    """An action that was not done; the text is the reason, one line for the user."""


class Unholdable(Refused):
    """The group has no step that all ranks could be held at; all that is left is to freeze it."""


class Group(Protocol):
    """The live ranks of a run, and its decisions."""

    @property
    def ranks(self) -> list[int]:
        """Return the ranks that were alive when the action began."""
        ...

    def ask(self, commands: Mapping[int, Command], timeout_s: float) -> Mapping[int, Reply]:
        """Send each rank its command and return the replies that came in time."""
        ...

    def departed(self) -> set[int]:
        """Return the ranks whose script has ended or whose process is gone."""
        ...

    def newest(self) -> int:
        """Return the number of the last decision; see `decisions`."""
        ...

    def decide(self, serial: int, decision: Command) -> bool:
        """Make decision `serial`; False where somebody else has made it before."""
        ...


@dataclass(frozen=True, slots=True)
class _Grip:
    """A group that is held at one step."""

    step: int
    token: str
    serial: int
    """Number of the decision that ends the lease."""
    kept: bool
    """True where it was paused before, and so has no lease."""


class Controller:
    """Carries out one action at a time on one group."""

    def __init__(
        self,
        group: Group,
        who: str = "somebody",
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._group = group
        self._ranks = list(group.ranks)
        self._who = who
        self._clock = clock
        self._sleep = sleep

    def pause(self, patience_s: float = PATIENCE_S) -> str:
        """Hold all ranks at the same step boundary, no collective outstanding.

        Raises:
            Refused: some rank cannot be held; all go on.
        """
        started = self._clock()
        grip = self._take(patience_s)
        self._decide(grip, wire.Keep(0, grip.token, grip.step, grip.serial))
        return f"held at step {grip.step} in {(self._clock() - started) * 1e3:.0f} ms"

    def advance(self, steps: int, patience_s: float = PATIENCE_S) -> str:
        """From a pause, let all ranks do exactly so many more steps.

        Raises:
            Refused: the group is not paused, or a rank does not come to the step.
        """
        started = self._clock()
        standing = self._standing()
        if not _is_paused(standing):
            under_way = any(reply.kept for reply in standing.values())
            raise Refused("the steps before are still being made" if under_way else "not paused; pause it first")
        places = {reply.step for reply in standing.values()}
        if len(places) > 1:
            where = ", ".join(f"rank {rank} at {reply.step}" for rank, reply in standing.items())
            raise Unholdable(f"the ranks are held at different steps ({where}): there is no common step to go on to")
        target = (places.pop() or 0) + steps
        serial = self._decide_next(lambda serial: wire.Advance(0, target, serial))
        self._ask(lambda id: wire.Advance(id, target, serial))
        self._await_target(target, patience_s)
        done = f"{steps} step{'' if steps == 1 else 's'}"
        return f"held at step {target} after {done} in {(self._clock() - started) * 1e3:.0f} ms"

    def resume(self) -> str:
        """Let all ranks go on.

        Raises:
            Refused: some rank does not answer, or none was held.
        """
        serial = 0
        if any(reply.kept for reply in self._standing().values()):
            serial = self._decide_next(lambda serial: wire.Resume(0, serial))
        replies = self._ask(lambda id: wire.Resume(id, serial))
        if all(reply.text == "was not paused" for reply in replies.values()):
            raise Refused("not paused")
        return f"goes on from step {max(reply.step or 0 for reply in replies.values())}"

    def checkpoint(self) -> str:
        """Have every rank save a checkpoint at the same step; a group that was paused stays so.

        Raises:
            Refused: the script has not said how, or some rank could not; the group goes on.
        """
        self._check_registered()
        grip = self._grip()
        saved = self._save(grip)
        if not grip.kept:
            self._decide(grip, wire.Resume(0, grip.serial))
        return f"step {grip.step} {saved}"

    def stop(self, *, checkpoint: bool = True) -> str:
        """Let every script end at the same step boundary, after a checkpoint where it has said how to make one.

        Raises:
            Refused: the checkpoint failed, and nothing was ended; or some rank does not end.
        """
        checkpoint = checkpoint and self._registered()
        grip = self._grip()
        saved = self._save(grip) if checkpoint else "without a checkpoint"
        self._decide(grip, wire.End(0, self._who, grip.serial))
        deadline = self._clock() + LEAVE_S
        while left := [rank for rank in self._ranks if rank not in self._group.departed()]:
            if self._clock() > deadline:
                raise Refused(
                    f"{_named(left)} did not end within {LEAVE_S:.0f} s at step {grip.step} ({saved}); "
                    f"`ddptop kill` ends what is left"
                )
            self._sleep(0.05)
        return f"stopped at step {grip.step}, {saved}"

    # How a group is held

    def _grip(self) -> _Grip:
        """Return the group held at one step: as it is where it is paused, under a lease otherwise."""
        standing = self._standing()
        if not _is_paused(standing):
            return self._take(PATIENCE_S)
        step = max(reply.step or 0 for reply in standing.values())
        return _Grip(step, secrets.token_hex(8), self._group.newest() + 1, kept=True)

    def _take(self, patience_s: float) -> _Grip:
        started, token = self._clock(), secrets.token_hex(8)
        serial = self._group.newest() + 1
        lease_ms = int(LEASE_S * 1000)
        promises = self._ask_leniently(lambda id: wire.Hold(id, token, lease_ms))
        try:
            self._check(promises)
            steps = {rank: reply.step for rank, reply in promises.items() if reply.step is not None}
            step = max(steps.values())
            if step - min(steps.values()) > FARTHEST:
                last = min(steps, key=steps.__getitem__)
                raise Unholdable(
                    f"the ranks do not share a step count (rank {last} is at {steps[last] - 1}, "
                    f"another at {step - 1}), so there is no step to hold all of them at"
                )
            self._check(self._ask_leniently(lambda id: wire.Commit(id, token, step, lease_ms)))
            self._await_held(token, step, started + patience_s, patience_s)
        except Refused:
            self._let_go([rank for rank, reply in promises.items() if reply.done])
            raise
        return _Grip(step, token, serial, kept=False)

    def _await_held(self, token: str, step: int, deadline: float, patience_s: float) -> None:
        nap, renew_at = 0.002, self._clock() + RENEW_S
        while True:
            replies = self._standing()
            pending = [rank for rank, reply in replies.items() if not reply.done]
            if not pending:
                return
            if self._clock() > deadline:
                raise Unholdable(
                    f"{_named(pending)} did not come to the end of step {step} within {patience_s:.0f} s, "
                    f"so the run goes on; is there an optimizer step in its loop?"
                )
            if self._clock() >= renew_at:
                self._check(self._ask_leniently(lambda id: wire.Commit(id, token, step, int(LEASE_S * 1000))))
                renew_at = self._clock() + RENEW_S
            self._sleep(nap)
            nap = min(2 * nap, 0.1)

    def _await_target(self, target: int, patience_s: float) -> None:
        nap, best, deadline = 0.002, -1, self._clock() + patience_s
        while True:
            replies = self._standing()
            pending = {rank: reply.step or 0 for rank, reply in replies.items() if not reply.done}
            if not pending:
                return
            if not all(reply.kept for reply in replies.values()):
                raise Refused(f"somebody has let the run go on before step {target}")
            if sum(pending.values()) > best:
                best, deadline = sum(pending.values()), self._clock() + patience_s
            if self._clock() > deadline:
                rank, step = min(pending.items(), key=lambda item: item[1])
                raise Refused(
                    f"rank {rank} has completed step {step} and none in the last {patience_s:.0f} s; "
                    f"all are held at step {target} when they come there"
                )
            self._sleep(nap)
            nap = min(2 * nap, 0.1)

    def _decide(self, grip: _Grip, decision: wire.Keep | wire.Resume | wire.End) -> None:
        """End the lease, for all ranks or for none, and tell them."""
        if not self._group.decide(grip.serial, decision):
            if not grip.kept:
                self._let_go(self._ranks)
            raise Refused("somebody else acted on this run at the same moment; look, and try again")
        # A rank that does not hear of it reads it by itself.
        self._group.ask({rank: _numbered(decision) for rank in self._ranks}, ANSWER_S)

    def _decide_next(self, decision: Callable[[int], Command]) -> int:
        for _ in range(10):
            serial = self._group.newest() + 1
            if self._group.decide(serial, decision(serial)):
                return serial
        raise Refused("others keep acting on this run at the same time; look, and try again")

    def _let_go(self, ranks: list[int]) -> None:
        if ranks:
            self._group.ask({rank: wire.Resume(next(_ids)) for rank in ranks}, ANSWER_S)

    # Checkpoints

    def _registered(self) -> bool:
        """Say whether the scripts have told how to save.

        Raises:
            Refused: some have, some have not: those would wait for each other.
        """
        told = {rank: reply.checkpoints for rank, reply in self._standing().items()}
        if any(told.values()) and not all(told.values()):
            without = _named([rank for rank, can in told.items() if not can])
            raise Refused(f"{without} has registered no checkpoint function, others have: every rank must")
        return all(told.values())

    def _check_registered(self) -> None:
        if not self._registered():
            raise Refused("its script has not said how to save a checkpoint: ddptop.agent.on_checkpoint(function)")

    def _save(self, grip: _Grip) -> str:
        """Have all held ranks save, and say where; raises `Refused` after letting go."""
        nap = 0.01
        try:
            replies = self._ask(lambda id: wire.Save(id, grip.token))
            while any(reply.pending for reply in replies.values()):
                self._sleep(nap)
                nap = min(2 * nap, 0.25)
                replies = self._ask(lambda id: wire.Save(id, grip.token))
        except Refused:
            if not grip.kept:
                self._let_go(self._ranks)
            raise
        failed = [f"rank {rank}: {reply.text}" for rank, reply in replies.items() if not reply.done]
        if failed:
            goes = "it stays paused"
            if not grip.kept:
                goes = "the run goes on"
                self._let_go(self._ranks)
            raise Refused(f"no checkpoint, {goes}: {'; '.join(failed)}")
        took = max(reply.took_ns or 0 for reply in replies.values()) / 1e9
        return f"saved in {_places(reply.text for reply in replies.values())} ({took:.1f} s)"

    # Asking

    def _standing(self) -> Mapping[int, Reply]:
        return self._ask(wire.Query)

    def _ask(self, make: Callable[[int], Command]) -> Mapping[int, Reply]:
        """Ask all ranks that are still there; raises `Refused` where one of them does not answer."""
        replies = self._ask_leniently(make)
        if any(rank not in replies for rank in self._ranks):
            self._check(replies)
        return replies

    def _ask_leniently(self, make: Callable[[int], Command]) -> Mapping[int, Reply]:
        """Ask all ranks; a rank that has ended meanwhile leaves the group, and the others are not held up by it."""
        replies = self._group.ask({rank: make(next(_ids)) for rank in self._ranks}, ANSWER_S)
        if len(replies) < len(self._ranks):
            gone = self._group.departed()
            self._ranks = [rank for rank in self._ranks if rank in replies or rank not in gone]
        if not self._ranks:
            raise Refused("every rank has ended meanwhile")
        return replies

    def _check(self, replies: Mapping[int, Reply]) -> None:
        silent = [rank for rank in self._ranks if rank not in replies]
        if silent:
            raise Refused(f"{_named(silent)} did not answer within {ANSWER_S:.0f} s; `ddptop ps` tells who is alive")
        for rank, reply in replies.items():
            if not reply.done:
                known = reply.text.startswith("already paused")
                raise Refused(reply.text if known else f"rank {rank}: {reply.text}")


def _is_paused(standing: Mapping[int, Reply]) -> bool:
    return all(reply.done and reply.kept for reply in standing.values())


def _numbered(decision: wire.Keep | wire.Resume | wire.End) -> Command:
    match decision:
        case wire.Keep(_, token, step, serial):
            return wire.Keep(next(_ids), token, step, serial)
        case wire.Resume(_, serial):
            return wire.Resume(next(_ids), serial)
        case wire.End(_, who, serial):
            return wire.End(next(_ids), who, serial)


def _places(texts: Iterable[str]) -> str:
    """Return where ranks saved, each place once; most often rank 0 writes alone."""
    places = list(dict.fromkeys(text for text in texts if text))
    if not places:
        return "a place that the script does not tell"
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"{places[0]}{more}"


def _named(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
