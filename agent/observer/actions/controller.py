"""The actions on a group: pause, step, checkpoint, stop, resume. Pure: `PolledRanks` reach the ranks.

An action returns one line on its outcome, or raises `Refused` with the reason.  The group is held under a lease, which
is renewed until every rank has acknowledged that it is to be held for good: so it goes on by itself if this process
dies before.  A refused pause leaves no rank held; a refused step of a paused group leaves its ranks paused, or on their
way to that step.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.actions.polled import INSIST_S, AllEnded, PolledRanks
from ddptop.agent.observer.actions.wait import Wait
from ddptop.agent.text import plural, ranks_in_spans
from ddptop.agent.wire import Reply, Saved
from ddptop.agent.wire.frames import awaited
from ddptop.agent.wire.refusals import Refused, Unheard, Unholdable, Unsavable

PATIENCE_S: Final = 60.0
"""Seconds that a pause waits for the slowest rank to reach the step, and a step for the next progress."""
LEASE_S: Final = 4.0
"""Seconds that a hold outlives the observer."""
RENEW_S: Final = 1.0
FIRST_S: Final = 10.0
"""Seconds that a pause waits in a group that has not completed a single step: its program may have none."""
LEAVE_S: Final = 30.0
"""Seconds that a stopped script may take to clean up."""
FARTHEST: Final = 64
"""Ranks of one group are a step apart, or a few where the device lags; a larger distance means no common count."""
_LEASE_MS: Final = int(LEASE_S * 1000)


@dataclass(frozen=True, slots=True)
class Held:
    """A group that is held at one step."""

    step: int
    token: str
    was_paused: bool
    """True where the group was paused before the action, and so is held without a lease."""


class Controller:
    """Carries out one action on one group."""

    def __init__(self, ranks: PolledRanks, who: str, wait: Wait) -> None:
        """Prepare to act.

        Args:
            ranks: of the run.
            who: the author of the action.
            wait: where the action says what it waits for, and is cancelled.
        """
        self._ranks = ranks
        self._who = who
        self._wait = wait

    def pause(self, patience_s: float = PATIENCE_S) -> str:
        """Pause all ranks at the same step boundary, with no collective outstanding.

        Raises:
            Refused: some rank cannot be held; all ranks go on.
            Hung: the same, because the run hangs.
        """
        started = self._wait.clock()
        held = self._lease("pause", patience_s)
        self._wait.decide()
        self._keep(held)
        return f"held at step {held.step:,} in {(self._wait.clock() - started) * 1e3:,.0f} ms"

    def advance(self, steps: int, patience_s: float = PATIENCE_S) -> str:
        """Let all ranks of a paused group do exactly this many more steps.

        Raises:
            Refused: the group is not paused, or a rank does not reach the step.
            Cancelled: the wait was cancelled; the ranks are held at the step all the same.
        """
        started = self._wait.clock()
        standing = self._ranks.standing()
        if not _is_paused(standing):
            under_way = any(reply.kept for reply in standing.values())
            raise Refused("the steps before are still being made" if under_way else "not paused; pause it first")
        steps_held = {reply.step for reply in standing.values()}
        if len(steps_held) > 1:
            where = ", ".join(f"rank {rank} at {reply.step}" for rank, reply in standing.items())
            raise Unholdable(f"the ranks are held at different steps ({where}): there is no common step to go on to")
        target = (steps_held.pop() or 0) + steps
        self._ranks.insist(wire.Advance(0, target))
        self._await_target(target, patience_s)
        took_ms = (self._wait.clock() - started) * 1e3
        return f"held at step {target:,} after {plural(steps, 'step')} in {took_ms:,.0f} ms"

    def resume(self) -> str:
        """Resume all ranks.

        Raises:
            Refused: some rank does not answer, or none was held.
        """
        # First whether all can be told: none goes on alone, into a collective that waits for the others.
        self._ranks.standing()
        replies = self._ranks.insist(wire.Resume(0))
        if all(reply.text == "was not paused" for reply in replies.values()):
            raise Refused("not paused")
        return f"resumed at step {max(reply.step or 0 for reply in replies.values()):,}"

    def checkpoint(self) -> str:
        """Have every rank save a checkpoint at the same step; a group that was paused stays so.

        Raises:
            Refused: the script has registered no function for it, or the function failed; an unpaused group goes on.
        """
        if not self._can_save():
            raise Unsavable("no checkpoint function registered")
        with self.hold("checkpoint") as held:
            saved = self._save(held)
        return f"step {held.step:,} {saved}"

    def stop(self, *, checkpoint: bool = True) -> str:
        """End every script at the same step boundary, after a checkpoint where the script has a function for it.

        Raises:
            Refused: the checkpoint failed, and nothing was ended; or some rank does not end.
        """
        checkpoint = checkpoint and self._can_save()
        held = self._hold("stop")
        self._wait.decide()
        with self._undone(held):
            saved = self._save(held) if checkpoint else "without a checkpoint"
        # Of ranks that end at once the answers may be lost.
        with contextlib.suppress(AllEnded):
            self._ranks.insist(wire.End(0, self._who))
        deadline = self._wait.clock() + LEAVE_S
        while left := self._ranks.remaining():
            if self._wait.clock() > deadline:
                raise Refused(
                    f"{ranks_in_spans(left)} did not end within {LEAVE_S:.0f} s at step {held.step:,} ({saved}); "
                    f"`ddptop kill` ends what is left"
                )
            self._wait.sleep(0.05)
        return f"stopped at step {held.step:,}, {saved}"

    def settle(self, stopped_by: str) -> str:
        """Complete or undo what an observer that is gone, or a link that was cut, has left half done.

        Ranks that are held for good while others are not go on; where all are, but at different steps, those behind go
        on to the furthest; where the others were ended by a stop, these end, too.

        Args:
            stopped_by: the author of a stop by which ranks have ended; empty where none has.

        Returns:
            What was done; empty where nothing was to be done.

        Raises:
            Refused: a rank does not answer.
        """
        standing = self._ranks.standing()
        kept = {rank: reply for rank, reply in standing.items() if reply.kept}
        if kept and stopped_by:
            with contextlib.suppress(AllEnded):
                self._ranks.insist(wire.End(0, stopped_by))
            return f"a stop by {stopped_by} was left half done: {ranks_in_spans(standing)} ended, too"
        if kept and len(kept) < len(standing):
            self._ranks.insist(wire.Resume(0))
            return f"an action was left half done, with only {ranks_in_spans(kept)} held: all ranks go on"
        limits = {reply.limit for reply in kept.values() if reply.limit is not None}
        if len(limits) > 1:
            furthest = max(limits)
            self._ranks.insist(wire.Advance(0, furthest))
            return f"a step was left half done: all ranks go on to step {furthest:,}, and are paused there"
        return ""

    def follow_up(self, *, saves: bool) -> str:
        """Return what an action has come to whose observer was killed, once its ranks do nothing of it any more.

        Args:
            saves: a checkpoint was a part of it.

        Raises:
            Refused: a rank does not answer, or is on its way to a step that it does not come to.
        """
        for _ in self._wait.rounds():
            try:
                standing = self._ranks.standing()
            except Unheard:
                # Just after the start of this observer they may not be connected.
                if self._wait.waited_s > INSIST_S:
                    raise
                continue
            limits = {reply.limit for reply in standing.values() if reply.kept}
            waits = any(
                reply.pending or (reply.limit is not None and not (reply.kept and reply.done))
                for reply in standing.values()
            )
            # Where ranks are to be held at different steps, `settle` is next.
            if not waits or len(limits) > 1:
                break
        kept = [rank for rank, reply in standing.items() if reply.kept]
        goes = "the run goes on"
        if kept:
            goes = f"{ranks_in_spans(kept)} alone held" if len(kept) < len(standing) else ""
        if not goes:
            at = sorted({reply.step or 0 for reply in standing.values()})
            goes = f"all ranks are held at step {' and '.join(f'{step:,}' for step in at)}"
        saved = {rank: reply.saved for rank, reply in standing.items() if saves and reply.saved}
        if not saved:
            return goes
        who = "" if len(saved) == len(standing) else f" by {ranks_in_spans(saved)}"
        failed = _failures(saved)
        step = max(each.step for each in saved.values())
        return f"step {step:,} {f'not saved: {failed}' if failed else _saved(saved.values())}{who}; {goes}"

    # Holding the group

    @contextlib.contextmanager
    def hold(self, action: str) -> Iterator[Held]:
        """Hold the group for the block under a lease, which the block renews; a group that was paused stays so.

        Raises:
            Refused: some rank cannot be held; all ranks go on.
        """
        held = self._hold(action)
        with self._undone(held):
            yield held
        if not held.was_paused:
            self._ranks.insist(wire.Resume(0))

    @contextlib.contextmanager
    def _undone(self, held: Held) -> Iterator[None]:
        """Let the group go where the block raises; one that was paused stays so."""
        try:
            yield
        except BaseException:
            if not held.was_paused:
                self._release(held.token, held.step)
            raise

    def _hold(self, action: str) -> Held:
        """Hold the group under a lease, unless it is paused already."""
        standing = self._ranks.standing()
        if not _is_paused(standing):
            return self._lease(action, PATIENCE_S)
        step = max(reply.step or 0 for reply in standing.values())
        return Held(step, os.urandom(8).hex(), was_paused=True)

    def _lease(self, action: str, patience_s: float) -> Held:
        """Hold a running group at the next common step, under a lease."""
        token = os.urandom(8).hex()
        promises = self._ranks.gather(wire.Hold(0, token, _LEASE_MS))
        try:
            self._ranks.check(promises)
            step = _common(promises)
            self._ranks.demand(wire.Commit(0, token, step, _LEASE_MS))
            self._await_held(action, token, step, patience_s)
        except Refused:
            self._release(token, _furthest(promises))
            raise
        return Held(step, token, was_paused=False)

    def _keep(self, held: Held) -> None:
        """End the lease: the ranks are held until somebody resumes them, whatever becomes of this process."""
        try:
            replies = self._ranks.insist(wire.Commit(0, held.token, held.step))
        except Refused:
            self._ranks.let_go()
            raise
        if not all(reply.done for reply in replies.values()):
            self._ranks.let_go()
            raise Refused(_OUT_OF_REACH)

    def _release(self, token: str, step: int) -> None:
        """Let the ranks go that are held under this token, up to that step; others may hold them since."""
        self._ranks.release(token, step, _LEASE_MS)

    def _await_held(self, action: str, token: str, step: int, patience_s: float) -> None:
        wait, renew_at = self._wait, RENEW_S
        for _ in wait.rounds():
            standing = self._ranks.standing()
            behind = {rank: reply for rank, reply in standing.items() if not reply.done}
            if not behind:
                # What follows, such as a checkpoint, may take long.
                wait.line = ""
                self.renew(token, step)
                return
            wait.tell(f"{_DOING.get(action, action)}: waiting for {_awaited(behind)}")
            if wait.waited_s > min(FIRST_S, patience_s) and not any(reply.step for reply in standing.values()):
                raise Unholdable(
                    "no rank has completed an optimizer step yet, and there is nothing else to hold them at; "
                    "try again after the first, if there is one in this program"
                )
            if wait.waited_s > patience_s:
                raise Unholdable(
                    f"{ranks_in_spans(behind)} did not finish step {step:,} within {patience_s:.0f} s, "
                    f"so the run goes on; does its loop call an optimizer step?"
                )
            if wait.waited_s >= renew_at:
                self.renew(token, step)
                renew_at = wait.waited_s + RENEW_S

    def renew(self, token: str, step: int) -> None:
        """Renew the lease of a hold; raises `Refused` where a rank is no longer held."""
        replies = self._ranks.ask(wire.Commit(0, token, step, _LEASE_MS))
        if not all(reply.done for reply in replies.values()):
            raise Refused(_OUT_OF_REACH)

    def _await_target(self, target: int, patience_s: float) -> None:
        for _ in self._wait.rounds(after := f"all ranks are held at step {target:,} when they come there"):
            replies = self._ranks.standing()
            behind = {rank: reply for rank, reply in replies.items() if not reply.done}
            if not behind:
                return
            if not all(reply.kept for reply in replies.values()):
                raise Refused(f"somebody resumed the run before step {target:,}")
            self._wait.tell(f"stepping to {target:,}, then paused: waiting for {_awaited(behind)}")
            steps = {rank: reply.step or 0 for rank, reply in behind.items()}
            if self._wait.stuck_s(sum(steps.values())) > patience_s:
                rank, step = min(steps.items(), key=lambda item: item[1])
                raise Refused(
                    f"rank {rank} has completed step {step:,} and none in the last {patience_s:.0f} s; {after}"
                )

    # Checkpoints

    def _can_save(self) -> bool:
        """Say whether the scripts have registered a checkpoint function.

        Raises:
            Refused: only some ranks have: the ranks would wait for each other.
        """
        told = {rank: reply.checkpoints for rank, reply in self._ranks.standing().items()}
        if any(told.values()) and not all(told.values()):
            without = ranks_in_spans([rank for rank, can in told.items() if not can])
            raise Refused(f"no checkpoint function on {without}; every rank must register one")
        return all(told.values())

    def _save(self, held: Held) -> str:
        """Have all held ranks save, and return the line on it; raises `Refused`."""
        nap = 0.01
        self._wait.decide()
        while True:
            replies = self._ranks.ask(wire.Save(0, held.token))
            if not any(reply.pending for reply in replies.values()):
                break
            self._wait.sleep(nap)
            nap = min(2 * nap, 0.25)
        if failed := _failures(replies):
            goes = "it stays paused" if held.was_paused else "the run goes on"
            raise Refused(f"no checkpoint, {goes}: {failed}")
        return _saved(replies.values())


def _failures(outcomes: Mapping[int, Reply | Saved]) -> str:
    return "; ".join(f"rank {rank}: {each.text}" for rank, each in outcomes.items() if not each.done)


def _saved(outcomes: Collection[Reply | Saved]) -> str:
    """Return the line on a checkpoint that ranks have saved."""
    took = max(each.took_ns or 0 for each in outcomes) / 1e9
    return f"saved in {_paths(each.text for each in outcomes)} ({took:.1f} s)"


_OUT_OF_REACH: Final = "the ranks were out of reach for too long; the run goes on"
_DOING: Final = {"pause": "pausing", "stop": "stopping", "probe": "probing"}


def _awaited(behind: Mapping[int, Reply]) -> str:
    """Return `rank 3`: the ranks that are waited for, of those that are not held."""
    return ranks_in_spans(awaited({rank: reply.outstanding for rank, reply in behind.items()}))


def _furthest(promises: Mapping[int, Reply]) -> int:
    """Return the last step that a rank has promised not to pass, 0 where none has."""
    return max((reply.step or 0 for reply in promises.values() if reply.done), default=0)


def _common(promises: Mapping[int, Reply]) -> int:
    """Return the step at which all ranks can be held; raises `Unholdable` where there is none."""
    steps = {rank: reply.step for rank, reply in promises.items() if reply.step is not None}
    first, last = max(steps, key=steps.__getitem__), min(steps, key=steps.__getitem__)
    if steps[first] - steps[last] > FARTHEST:
        raise Unholdable(
            f"the ranks do not share a step count (rank {last} has done {steps[last] - 1}, rank {first} "
            f"{steps[first] - 1}), so there is no step to hold all of them at"
        )
    return steps[first]


def _is_paused(standing: Mapping[int, Reply]) -> bool:
    return all(reply.done and reply.kept for reply in standing.values())


def _paths(texts: Iterable[str]) -> str:
    """Return the paths of the checkpoint, each once; most often only rank 0 writes one."""
    paths = list(dict.fromkeys(text for text in texts if text))
    if not paths:
        return "a place that only the script knows"
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0]}{more}"
