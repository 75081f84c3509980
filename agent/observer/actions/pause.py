"""What the group does at a common step: pause, step, resume, checkpoint, stop, and what an observer has left of them.

An action returns one line on its outcome, or raises `Refused` with the reason.  A pause takes two rounds, hold and
commit; that the ranks are held they say by themselves.  Until all are, each is under a lease, which is renewed without
an answer: so the group goes on by itself if this process dies before.  Then a notice, which nobody waits for, makes
the pause the ranks' own.  A refused pause leaves no rank held; a refused step of a paused group leaves its ranks
paused, or on their way to that step.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from ddptop.agent import wire
from ddptop.agent.observer.actions.action import NAP_S, Action, Turns
from ddptop.agent.observer.actions.ranks import INSIST_S, RENEW_S, AllEnded
from ddptop.agent.text import plural, ranks_in_spans
from ddptop.agent.wire import Beat, Reply, Saved
from ddptop.agent.wire.frames import awaited
from ddptop.agent.wire.vocabulary.refusals import Refused, Unheard, Unholdable, Unsavable

PATIENCE_S: Final = 60.0
"""Seconds that a pause waits for the slowest rank to reach the step, and a step for the next progress."""
LEASE_S: Final = 4.0
"""Seconds that a hold outlives the observer."""
FIRST_S: Final = 10.0
"""Seconds that a pause waits in a group that has not completed a single step: its program may have none."""
LEAVE_S: Final = 30.0
"""Seconds that a stopped script may take to clean up."""
FARTHEST: Final = 64
"""Ranks of one group are a step apart, or a few where the device lags; a larger distance means no common count."""
_LEASE_MS: Final = int(LEASE_S * 1000)
_OUT_OF_REACH: Final = "the ranks were out of reach for too long; the run goes on"
_DOING: Final = {"pause": "pausing", "stop": "stopping", "probe": "probing"}


_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Held:
    """A group that is held at one step."""

    step: int
    token: str
    was_paused: bool
    """True where the group was paused before the action, and so is held without a lease."""


def pause(action: Action) -> Turns[str]:
    """Pause all ranks at the same step boundary, with no collective outstanding.

    Raises:
        Refused: some rank cannot be held; all ranks go on.
        Hung: the same, because the run hangs.
    """
    held = yield from _lease(action)
    action.decide()
    action.outcome = said = f"held at step {held.step:,} in {(action.clock() - action.began) * 1e3:,.0f} ms"
    # Nobody waits for that, but what is asked for next finds them paused.
    yield from action.ranks.bring(wire.Keep(0, held.token), lambda beat: beat.hold is not None and beat.hold.kept)
    return said


def step(action: Action) -> Turns[str]:
    """Let all ranks of a paused group do exactly so many more steps.

    Raises:
        Refused: the group is not paused, or a rank does not reach the step.
        Cancelled: the wait was cancelled; the ranks are held at the step all the same.
    """
    ranks, steps = action.ranks, action.command.steps
    standing = yield from ranks.standing()
    if not _is_paused(standing):
        under_way = any(beat.hold is not None and beat.hold.kept for beat in standing.values())
        raise Refused("the steps before are still being made" if under_way else "not paused; pause it first")
    if len({beat.step for beat in standing.values()}) > 1:
        where = ", ".join(f"rank {rank} at {beat.step}" for rank, beat in standing.items())
        raise Unholdable(f"the ranks are held at different steps ({where}): there is no common step to go on to")
    target = max(beat.step for beat in standing.values()) + steps
    yield from _check_answer(action, standing)
    yield from ranks.bring(wire.Advance(0, target), partial(_goes_to, target))
    yield from _await_target(action, target)
    took_ms = (action.clock() - action.began) * 1e3
    return f"held at step {target:,} after {plural(steps, 'step')} in {took_ms:,.0f} ms"


def resume(action: Action) -> Turns[str]:
    """Resume all ranks.

    Raises:
        Refused: some rank does not answer, or none was held.
    """
    standing = yield from action.ranks.standing()
    if all(map(_is_free, standing.values())):
        raise Refused("not paused")
    yield from _check_answer(action, standing)
    yield from action.ranks.bring(wire.Resume(0), _is_free)
    return f"resumed at step {max(beat.step for beat in standing.values()):,}"


def _check_answer(action: Action, standing: Mapping[int, Beat]) -> Turns[None]:
    """Have every paused rank answer before any is told to go on: none does so alone, into a collective.

    What a rank has said last may be seconds old.  One that is paused refuses to be held, and nothing changes by that.

    Raises:
        Unheard: one of them does not answer.
    """
    paused = [rank for rank, beat in standing.items() if beat.hold is not None and beat.hold.kept]
    replies = yield from action.ranks.ask(wire.Hold(0, os.urandom(8).hex(), _LEASE_MS), paused)
    action.ranks.check_heard((standing.keys() - paused) | replies.keys())


def checkpoint(action: Action) -> Turns[str]:
    """Have every rank save a checkpoint at the same step; a group that was paused stays so.

    Raises:
        Refused: the script has registered no function for it, or the function failed; an unpaused group goes on.
    """
    if not (yield from _can_save(action)):
        raise Unsavable("no checkpoint function registered")
    held = yield from hold(action)
    saved = yield from undone(action, held, _save(action, held))
    yield from let_go(action, held)
    return f"step {held.step:,} {saved}"


def stop(action: Action) -> Turns[str]:
    """End every script at the same step boundary, after a checkpoint where the script has a function for it.

    Raises:
        Refused: the checkpoint failed, and nothing was ended; or some rank does not end.
    """
    ranks = action.ranks
    saves = action.command.checkpoint and (yield from _can_save(action))
    held = yield from hold(action)
    action.decide()
    saved = "without a checkpoint"
    if saves:
        saved = yield from undone(action, held, _save(action, held))
    action.wait()
    again_at = 0.0
    with contextlib.suppress(AllEnded):
        while True:
            ranks.drop_departed()
            if action.waited_s > LEAVE_S:
                late = f"{ranks_in_spans(ranks.ranks)} did not end within {LEAVE_S:.0f} s at step {held.step:,}"
                raise Refused(f"{late} ({saved}); `ddptop kill` ends what is left")
            if action.waited_s >= again_at:
                ranks.tell(wire.End(0, action.author))
                again_at = action.waited_s + RENEW_S
            yield 0.05
    return f"stopped at step {held.step:,}, {saved}"


def settle(action: Action) -> Turns[str]:
    """Complete or undo what an observer that is gone, or a link that was cut, has left half done.

    Ranks that are held for good while others are not go on; where all are, but at different steps, those behind go
    on to the furthest; where the others were ended by a stop, these end, too.

    Returns:
        What was done; empty where nothing was to be done.

    Raises:
        Refused: a rank does not answer.
    """
    ranks = action.ranks
    standing = yield from ranks.standing()
    kept = {rank: beat.hold for rank, beat in standing.items() if beat.hold is not None and beat.hold.kept}
    if kept and ranks.stopped_by:
        ranks.tell(wire.End(0, ranks.stopped_by))
        return f"a stop by {ranks.stopped_by} was left half done: {ranks_in_spans(standing)} ended, too"
    if kept and len(kept) < len(standing):
        yield from ranks.bring(wire.Resume(0), _is_free)
        return f"an action was left half done, with only {ranks_in_spans(kept)} held: all ranks go on"
    limits = {hold.limit for hold in kept.values()}
    if len(limits) > 1:
        furthest = max(limits)
        yield from ranks.bring(wire.Advance(0, furthest), partial(_goes_to, furthest))
        return f"a step was left half done: all ranks go on to step {furthest:,}, and are paused there"
    return ""


def follow_up(action: Action) -> Turns[str]:
    """Return what an action has come to whose observer was killed, once its ranks do nothing of it any more.

    Raises:
        Refused: a rank does not answer, or is on its way to a step that it does not come to.
    """
    action.wait()
    while True:
        try:
            standing = yield from action.ranks.standing()
        except Unheard:
            # Just after the start of this observer they may not be connected.
            if action.waited_s > INSIST_S:
                raise
        else:
            holds = [beat.hold for beat in standing.values() if beat.hold is not None]
            # Where ranks are to be held at different steps, `settle` is next.
            if len({each.limit for each in holds if each.kept}) > 1:
                break
            if all(each.kept and each.held and not each.busy for each in holds):
                break
        yield NAP_S
        action.check_wait()
    kept = [rank for rank, beat in standing.items() if beat.hold is not None and beat.hold.kept]
    goes = "the run goes on"
    if kept:
        goes = f"{ranks_in_spans(kept)} alone held" if len(kept) < len(standing) else ""
    if not goes:
        at = sorted({beat.step for beat in standing.values()})
        goes = f"all ranks are held at step {' and '.join(f'{step:,}' for step in at)}"
    saves = action.name in ("checkpoint", "stop")
    saved = {rank: beat.saved for rank, beat in standing.items() if saves and beat.saved is not None}
    if not saved:
        return goes
    who = "" if len(saved) == len(standing) else f" by {ranks_in_spans(saved)}"
    failed = _failures(saved)
    at_step = max(each.step for each in saved.values())
    return f"step {at_step:,} {f'not saved: {failed}' if failed else _saved(saved.values())}{who}; {goes}"


# Holding the group


def hold(action: Action) -> Turns[Held]:
    """Hold the group under a lease, unless it is paused already.

    Raises:
        Refused: some rank cannot be held; all ranks go on.
    """
    standing = yield from action.ranks.standing()
    if _is_paused(standing):
        return Held(max(beat.step for beat in standing.values()), os.urandom(8).hex(), was_paused=True)
    return (yield from _lease(action))


def undone(action: Action, held: Held, work: Turns[_Found]) -> Turns[_Found]:
    """Do some work while the group is held; where it fails, let the group go, unless it was paused before."""
    try:
        return (yield from work)
    except Exception:
        if not held.was_paused:
            action.ranks.tell(wire.Resume(0, token=held.token))
        raise


def let_go(action: Action, held: Held) -> Turns[None]:
    """Let a group go that was not paused before."""
    if not held.was_paused:
        yield from action.ranks.bring(wire.Resume(0), _is_free)


def renew(action: Action, held: Held) -> None:
    """Renew the lease of a hold; raises `Refused` where a rank is not held any more."""
    action.ranks.tell(wire.Commit(0, held.token, held.step, _LEASE_MS))
    if not all(is_held(beat, held.token, held.step) for beat in action.ranks.beats().values()):
        raise Refused(_OUT_OF_REACH)


def _lease(action: Action) -> Turns[Held]:
    """Hold a running group at the next common step, under a lease."""
    ranks, token = action.ranks, os.urandom(8).hex()
    promises = yield from ranks.ask(wire.Hold(0, token, _LEASE_MS))
    try:
        ranks.check(promises)
        step = _common(promises)
        ranks.check((yield from ranks.ask(wire.Commit(0, token, step, _LEASE_MS))))
        yield from _await_held(action, token, step)
    except Exception:
        ranks.tell(wire.Resume(0, token=token))
        raise
    return Held(step, token, was_paused=False)


def _await_held(action: Action, token: str, step: int) -> Turns[None]:
    ranks, renew_at = action.ranks, RENEW_S
    # Those that have said that they are under this lease.
    seen: set[int] = set()
    action.wait()
    while True:
        beats = ranks.beats()
        behind = {rank: beats.get(rank) for rank in ranks.ranks if not is_held(beats.get(rank), token, step)}
        if not behind:
            # What follows, such as a checkpoint, may take long.
            action.line = ""
            return
        leased = {rank for rank, beat in beats.items() if beat.hold is not None and beat.hold.token == token}
        if lost := (seen if action.waited_s <= LEASE_S else set(ranks.ranks)) - leased:
            ranks.drop_departed()
            if not lost.isdisjoint(ranks.ranks):
                raise Refused(_OUT_OF_REACH)
        seen |= leased
        action.tell(f"{_DOING.get(action.name, action.name)}: waiting for {_awaited(behind)}")
        if action.waited_s > FIRST_S and not any(beat.step for beat in beats.values()):
            raise Unholdable(
                "no rank has completed an optimizer step yet, and there is nothing else to hold them at; "
                "try again after the first, if there is one in this program"
            )
        if action.waited_s > PATIENCE_S:
            raise Unholdable(
                f"{ranks_in_spans(behind)} did not finish step {step:,} within {PATIENCE_S:.0f} s, "
                f"so the run goes on; does its loop call an optimizer step?"
            )
        if action.waited_s >= renew_at:
            ranks.drop_departed()
            ranks.tell(wire.Commit(0, token, step, _LEASE_MS))
            renew_at = action.waited_s + RENEW_S
        yield NAP_S
        action.check_wait()


def _await_target(action: Action, target: int) -> Turns[None]:
    ranks, again_at = action.ranks, RENEW_S
    after = f"all ranks are held at step {target:,} when they come there"
    action.wait()
    while True:
        beats = ranks.beats()
        holds = {rank: beat.hold for rank, beat in beats.items()}
        there = {rank for rank, hold in holds.items() if hold and hold.held and hold.limit >= target}
        behind = {rank: beats.get(rank) for rank in ranks.ranks if rank not in there}
        if not behind:
            return
        if resumed := {rank for rank, hold in holds.items() if hold is None or not hold.kept}:
            ranks.drop_departed()
            if not resumed.isdisjoint(ranks.ranks):
                raise Refused(f"somebody resumed the run before step {target:,}")
        action.tell(f"stepping to {target:,}, then paused: waiting for {_awaited(behind)}")
        steps = {rank: 0 if beat is None else beat.step for rank, beat in behind.items()}
        if action.stuck_s(sum(steps.values())) > PATIENCE_S:
            rank, at = min(steps.items(), key=lambda item: item[1])
            raise Refused(f"rank {rank} has completed step {at:,} and none in the last {PATIENCE_S:.0f} s; {after}")
        if action.waited_s >= again_at:
            ranks.drop_departed()
            ranks.tell(wire.Advance(0, target))
            again_at = action.waited_s + RENEW_S
        yield NAP_S
        action.check_wait(after)


# Checkpoints


def _can_save(action: Action) -> Turns[bool]:
    """Say whether the scripts have registered a checkpoint function.

    Raises:
        Refused: only some ranks have: the ranks would wait for each other.
    """
    standing = yield from action.ranks.standing()
    without = [rank for rank, beat in standing.items() if not beat.checkpoints]
    if without and len(without) < len(standing):
        raise Refused(f"no checkpoint function on {ranks_in_spans(without)}; every rank must register one")
    return not without


def _save(action: Action, held: Held) -> Turns[str]:
    """Have all held ranks save, and return the line on it; raises `Refused`."""
    nap = 0.01
    action.decide()
    while True:
        replies = yield from action.ranks.ask(wire.Save(0, held.token))
        action.ranks.check_heard(replies)
        if not any(reply.pending for reply in replies.values()):
            break
        yield nap
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


def _awaited(behind: Mapping[int, Beat | None]) -> str:
    """Return `rank 3`: the ranks that are waited for, of those that are not held."""
    return ranks_in_spans(awaited({rank: 0 if beat is None else beat.outstanding for rank, beat in behind.items()}))


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


def is_held(beat: Beat | None, token: str, step: int) -> bool:
    """Say whether a rank is held at a step by an action."""
    hold = None if beat is None else beat.hold
    return hold is not None and hold.held and (hold.token, hold.limit) == (token, step)


def _is_free(beat: Beat) -> bool:
    return beat.hold is None


def _goes_to(step: int, beat: Beat) -> bool:
    return beat.hold is not None and beat.hold.limit >= step


def _is_paused(standing: Mapping[int, Beat]) -> bool:
    return all(beat.hold is not None and beat.hold.held and beat.hold.kept for beat in standing.values())


def _paths(texts: Iterable[str]) -> str:
    """Return the paths of the checkpoint, each once; most often only rank 0 writes one."""
    paths = list(dict.fromkeys(text for text in texts if text))
    if not paths:
        return "a place that only the script knows"
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0]}{more}"
