"""The verdict on a run that stands, from looks at its ranks at two moments at least."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ddptop.agent.end.mismatch import DEFAULT_GROUP, Mismatch
from ddptop.agent.observer.judge.hang import wording
from ddptop.agent.observer.judge.hang.activity import Activity
from ddptop.agent.observer.judge.hang.classes import IDLE, ORDER, SPINS, STOPPED, SURE, Cause, cause_of
from ddptop.agent.observer.judge.hang.looks import Look, main_thread
from ddptop.agent.observer.judge.hang.place import Place, place_of
from ddptop.agent.observer.judge.hang.progress import ONE, Progress
from ddptop.agent.observer.judge.hang.waits import (
    BARRIERS,
    NEW_GROUP,
    Wait,
    is_usual,
    mismatch_of,
    waits_of,
)
from ddptop.agent.observer.judge.standstill import BUSY_S, LONGEST_S, RENDEZVOUS_S, UNSEEN_S
from ddptop.agent.text import clean_line, plural
from ddptop.agent.wire import GroupCalls, Hang, Inspection

_RENDEZVOUS: Final = "rendezvous"
_ONE_WAY: Final = (
    (frozenset({"recv", "irecv", "recv_any_source"}), "none sends"),
    (frozenset({"send", "isend"}), "none receives"),
)
"""Calls that nobody answers where all ranks are blocked in one of them, and what is missing."""


@dataclass(frozen=True)
class Conclusion:
    """A verdict on a run that stands."""

    kind: str
    """The kind of the verdict: `hang`, or `standing`, which accuses nobody."""
    text: str
    """The line without the time."""
    hang: Hang
    definite: bool = False
    """It holds whatever else the ranks do, so that nothing more needs to be waited for."""


def at_exit(awaits: Mapping[int, str]) -> Conclusion:
    """Return the conclusion on ranks whose scripts have finished, and whose processes wait at exit for these things."""
    rank, what = next(iter(awaits.items()))
    more = f"; as {plural(len(awaits) - 1, 'other')}" if len(awaits) > 1 else ""
    text = f"rank {rank}'s script has finished; its process waits at exit for {what}{more}"
    where = "" if (found := re.search(r"\(([^()]+:\d+)\)", what)) is None else found[1]
    return Conclusion("hang", text, Hang("at_exit", tuple(awaits), clean_line(where), evidence="record of the rank"))


@dataclass(frozen=True)
class Case:
    """The evidence on a run that stands."""

    looks: Sequence[Look]
    """Oldest first, without progress from the first to the last."""
    progress: Progress
    world: int
    usual: Mapping[str, float]
    """By function, the seconds for which a rank has stood there before and gone on."""
    activity: Activity
    """The work that stacks do not show."""

    def conclude(self, now_ns: int) -> Conclusion | None:
        """Return the conclusion, None where that is not clear yet."""
        return _Reasoning(self, now_ns).conclusion()

    def left_out(self, ranks: Collection[int], now_ns: int) -> Conclusion | None:
        """Return the conclusion on ranks that make steps without a collective of others; None of no ranks."""
        return _Reasoning(self, now_ns).left_out(sorted(ranks)) if ranks else None


class _Reasoning:
    def __init__(self, case: Case, now_ns: int) -> None:
        self._case = case
        self._now_ns = now_ns
        self._progress, self._world = case.progress, case.world
        self._age_s = case.progress.age_s(now_ns)
        self._last = case.looks[-1].ranks
        self._present = case.progress.present
        self._away = [rank for rank in range(case.world) if self._is_away(rank)]
        self._waits = waits_of(self._last, case.world, self._present, self._away, case.progress.calls)

    def _is_away(self, rank: int) -> bool:
        return rank in self._progress.gone or self._progress.has_ended(rank)

    def conclusion(self) -> Conclusion | None:
        found = self._conclusion()
        if found is None or self._progress.has_stepped or found.definite:
            return found
        # A start takes its time, and nothing is known of it from before.
        return found if self._age_s >= BUSY_S else None

    def _conclusion(self) -> Conclusion | None:
        mismatch = mismatch_of(self._last)
        involved = self._waits.circle or self._waits.causes if mismatch is None else mismatch.calls.keys()
        raised = [rank for rank in sorted(involved) if rank in self._last and self._last[rank].exception]
        if raised:
            return self._raised(raised)
        if mismatch is not None:
            return self._mismatch(mismatch)
        if self._waits.circle:
            return self._circle()
        if self._waits.causes:
            return self._causes(self._waits.causes)
        if self._waits.complete:
            return self._inside(self._waits.complete)
        return self._rendezvous() or self._outside()

    def _causes(self, ranks: Collection[int]) -> Conclusion | None:
        # By the stacks alone nobody is known to be absent: a call may have been made that is not waited for.
        waits = () if self._waits.by_stacks else self._waits.waits.values()
        absent = frozenset().union(*(each.absent for of_rank in waits for each in of_rank))
        found = {rank: self._cause(rank) for rank in sorted(ranks)}
        # A rank whose calls are not known may be in them, and only have answered late.
        proved = {rank for rank, cause in found.items() if rank in absent or (cause is not None and cause.kind in SURE)}
        if proved and not self._waits.by_stacks:
            found = {rank: found[rank] for rank in sorted(proved)}
        elif len(self._case.looks) < SPINS:
            return None
        known = [cause for cause in found.values() if cause is not None]
        if not known:
            return None
        kind = min((cause.kind for cause in known), key=ORDER.index)
        causes = [cause for cause in known if cause.kind == kind]
        if ORDER.index(kind) > ORDER.index("working"):
            # Of very many ranks only the stacks of some are asked for; the others have not come either.
            causes += [each for each in known if each.kind == "unknown" != kind and each.rank in absent]
        if len(known) < len(found) and ORDER.index(kind) > ORDER.index("lock_held"):
            return None
        wait, waiters = self._waits.first(ranks), self._waits.ranks - {cause.rank for cause in causes}
        if kind == "working":
            return self._at_work(causes, wait, waiters)
        if kind == "unknown" and not self._progress.everyone:
            return None if self._age_s < self._patience_s else self._elsewhere(wait, waiters)
        if kind == "unknown" and self._age_s < LONGEST_S:
            # They send heartbeats; agent and observer may only get no core to ask and to answer.
            return None
        never_entered = absent.issuperset(cause.rank for cause in causes)
        sure = all(cause.sure for cause in causes) and (kind in SURE or never_entered)
        text = wording.accusation(causes, wait, waiters, self._world, never_entered=never_entered)
        return self._hang(kind, causes, text, wait, waiters, sure, definite=kind == "stopped")

    def left_out(self, ranks: Sequence[int]) -> Conclusion:
        wait, waiters = self._waits.first(ranks), self._waits.ranks - set(ranks)
        causes = [Cause(rank, "not_entered", "", evidence=("steps",)) for rank in ranks]
        text = wording.left_out(ranks, wait, waiters, self._world)
        return self._hang("not_entered", causes, text, wait, waiters, True)

    def _cause(self, rank: int) -> Cause | None:
        case = self._case
        return cause_of(rank, case.looks, self._progress, self._now_ns, case.usual, case.activity)

    @property
    def _patience_s(self) -> float:
        return max(UNSEEN_S, self._progress.bearable_s)

    def _at_work(self, causes: list[Cause], wait: Wait | None, waiters: Collection[int]) -> Conclusion | None:
        if self._age_s < self._progress.bearable_s or not waiters:
            return None
        text = wording.at_work(causes, waiters, self._world)
        return self._standing("working", text, causes, wait, waiters)

    def _elsewhere(self, wait: Wait | None, waiters: Collection[int]) -> Conclusion:
        call = "" if wait is None else f" in {wording.in_words(wait)}"
        wait_for = f"{wording.named(waiters, self._world)} {wording.verb(waiters, 'waits', 'wait')}"
        text = f"{wait_for}{call} for ranks of other hosts, or for the network"
        return self._hang("all_inside", [], text, wait, waiters, False)

    def _mismatch(self, mismatch: Mismatch) -> Conclusion:
        odd, is_tied = sorted(mismatch.odd), 2 * len(mismatch.odd) == len(mismatch.calls)
        if is_tied and all(mismatch.calls[rank].op in BARRIERS for rank in odd):
            # As many are elsewhere: where that is an evaluation or a save, these wait for it in order.
            rest = [rank for rank in sorted(mismatch.calls) if rank not in mismatch.odd]
            odd = rest if all(self._place(rank).takes_long for rank in rest) else odd
        others = [rank for rank in sorted(mismatch.calls) if rank not in odd]
        place = self._place(odd[0] if odd else others[0])
        call = mismatch.group, mismatch.number
        lines = {
            rank: self._place(rank).line
            for rank in mismatch.calls
            # Others have gone on to another line.
            if any((each.group, each.number) == call for each in self._last[rank].open)
        }
        is_ahead = mismatch.is_ahead and mismatch.odd == frozenset(odd)
        told = replace(mismatch, odd=frozenset(odd), is_ahead=is_ahead)
        text = wording.difference(told, lines, self._world)
        waits = [wait for rank in others for wait in self._waits.waits.get(rank, ())]
        wait = next((each for each in waits if each.call.number == mismatch.number), None) or self._waits.first(odd)
        waiters = frozenset(self._waits.waits) - set(odd)
        evidence = ("stacks",) if place.where else ()
        causes = [Cause(rank, "mismatch", "", self._place(rank), evidence=evidence) for rank in odd]
        sure = bool(odd) and not (is_tied and any(call.op in BARRIERS for call in mismatch.calls.values()))
        return self._hang("mismatch", causes, text, wait, waiters, sure, where=place.where)

    def _raised(self, ranks: Sequence[int]) -> Conclusion:
        """Return the conclusion on ranks that handle an exception, or are held up on its way: that came first."""
        found, waits = self._last[ranks[0]], self._waits.waits.get(ranks[0], ())
        place = self._place(ranks[0])
        does = f"stands in {wording.in_words(waits[0])}" if waits else place.does or "stands"
        stands = f"{does} ({place.line})" if place.line else does
        waiters = self._waits.ranks - set(ranks)
        text = wording.raised(ranks[0], found.exception, stands, waiters, self._world)
        text += f" · {found.raised_at}" if found.raised_at else ""
        causes = [Cause(rank, "exception", "", evidence=("exceptions",)) for rank in ranks]
        wait = self._waits.first(ranks)
        return self._hang("exception", causes, text, wait, waiters, True, where=found.raised_at, definite=True)

    def _circle(self) -> Conclusion:
        ranks = sorted(self._waits.circle)
        past, strange = self._gone_past(ranks), self._in_strange_calls(ranks)
        if past:
            wait = max((each for each, _ in past), key=lambda each: each.call.open_ns)
            odd = sorted({rank for _, rank in past})
            text = wording.gone_past(odd, wait, self._world)
        elif strange:
            odd = strange
            wait = self._waits.waits[odd[0]][0]
            text = wording.strange(odd, wait, self._world)
        else:
            odd, wait = ranks, self._waits.waits[ranks[0]][0]
            text = wording.circle(ranks, wait, self._waits.waits[ranks[-1]][0], self._world)
        place = self._place(odd[0])
        locks = wording.locks(self._last[rank] for rank in ranks)
        text += f"; {locks}" if locks else f" · {place.where}" if place.where else ""
        causes = [Cause(rank, "mismatch", "", self._place(rank)) for rank in odd]
        return self._hang("mismatch", causes, text, wait, set(ranks) - set(odd), not self._waits.by_stacks)

    def _gone_past(self, circle: Sequence[int]) -> list[tuple[Wait, int]]:
        """Return calls of a circle, each with a rank that has not made it, and yet is steps ahead of who is in it."""
        return [
            (wait, rank)
            for waiter in circle
            for wait in self._waits.waits[waiter]
            for rank in sorted(wait.absent.intersection(circle))
            if self._steps(rank) > self._steps(waiter) > 0
        ]

    def _steps(self, rank: int) -> int:
        found = self._last.get(rank)
        return found.step if found is not None and found.by == "agent" else 0

    def _in_strange_calls(self, circle: Sequence[int]) -> list[int]:
        """Return the ranks of a circle in a call as they have not made before, where all others are in usual ones."""
        usual = {rank for rank in circle if is_usual(self._waits.waits[rank][0].call, self._last[rank])}
        return sorted(set(circle) - usual) if usual else []

    def _inside(self, complete: Sequence[Wait]) -> Conclusion | None:
        """Return the conclusion where all have entered: a process that is stopped, or else the network."""
        ranks = sorted({wait.rank for wait in complete})
        if (stopped := self._stopped()) is not None:
            return stopped
        is_early = self._age_s < self._patience_s
        # By the stacks alone a call may just have begun.
        for calls, missing in () if is_early and self._waits.by_stacks else _ONE_WAY:
            if self._all_are_in(calls, complete):
                return self._unanswered(complete, missing)
        if is_early:
            return None
        if self._waits.by_stacks:
            return self._apart()
        wait = max(complete, key=lambda each: each.call.open_ns)
        place = self._place(wait.rank)
        where = f" · {place.where}" if place.where else ""
        text = f"{wording.named(ranks, self._world)} {wording.verb(ranks, 'hangs', 'hang')} in {wording.in_words(wait)}"
        text += f", which all have entered: network or backend{where}"
        return self._hang("all_inside", [], text, wait, ranks, False, where=place.where)

    def _apart(self) -> Conclusion:
        """Return the conclusion where all are in calls by their stacks: whether in the same one is not known."""
        calls: dict[tuple[str, str], list[int]] = {}
        for rank, (first, *_) in sorted(self._waits.waits.items()):
            calls.setdefault((wording.in_words(first), self._place(rank).line), []).append(rank)
        text, odd = wording.in_calls(calls, self._world)
        causes = [Cause(rank, "mismatch", "", self._place(rank)) for rank in odd]
        waiters = self._waits.ranks - set(odd)
        wait, kind = self._waits.first(odd), "mismatch" if len(calls) > 1 else "all_inside"
        return self._hang(kind, causes, text, wait, waiters, False, where=self._place(min(odd or waiters)).where)

    def _all_are_in(self, calls: Collection[str], complete: Sequence[Wait]) -> bool:
        """Say whether every rank of the run is blocked in one of these: then nobody is left who could answer."""
        blocked = {wait.rank for wait in complete if wait.call.op in calls and wait.call.blocking}
        only = all(wait.call.op in calls for wait in complete)
        return only and self._progress.everyone and blocked == set(range(self._world))

    def _unanswered(self, complete: Sequence[Wait], missing: str) -> Conclusion:
        wait = max(complete, key=lambda each: (each.call.open_ns, -each.rank))
        causes = [Cause(rank, "mismatch", "", self._place(rank)) for rank in range(self._world)]
        place = self._place(wait.rank)
        where = f" · {place.where}" if place.where else ""
        who = wording.named(range(self._world), self._world)
        text = f"{who} wait in {wording.in_words(wait)}, and {missing}{where}"
        waiters = range(self._world)
        return self._hang("mismatch", causes, text, wait, waiters, True, where=place.where)

    def _stopped(self) -> Conclusion | None:
        stopped = [rank for rank in self._present if self._is_stopped(rank)]
        causes = [cause for rank in stopped if (cause := self._cause(rank)) is not None and cause.kind == "stopped"]
        if not causes:
            return None
        text = wording.accusation(causes, None, (), self._world)
        return self._hang("stopped", causes, text, None, (), True, definite=True)

    def _is_stopped(self, rank: int) -> bool:
        inspection = self._last.get(rank)
        return inspection is not None and inspection.status in STOPPED

    def _rendezvous(self) -> Conclusion | None:
        """Return the conclusion on ranks that wait for others in the rendezvous."""
        beats = self._progress.beats
        waiters = [rank for rank in self._present if beats.get(rank) and beats[rank].activity == _RENDEZVOUS]
        if self._progress.has_stepped or not waiters or self._age_s < BUSY_S:
            return None
        known = self._progress.met | beats.keys()
        world = max(self._world, self._progress.asked_world)
        missing = [rank for rank in range(world) if rank not in known] if self._progress.everyone else []
        # Of a rank that is seen from outside it is not known what it does before.
        before = [
            rank
            for rank in self._present
            if rank not in waiters
            and rank in beats
            and (beats[rank].activity == "imports" or rank in self._progress.seen)
        ]
        causes = [
            cause for rank in sorted({*missing, *before, *self._away}) if (cause := self._cause(rank)) is not None
        ]
        if any(cause.kind == "working" for cause in causes):
            return None
        wait_for = f"{wording.named(waiters, world)} {wording.verb(waiters, 'waits', 'wait')}"
        place = self._place(waiters[0])
        if causes:
            text = wording.missed(causes, wait_for, place, world)
            # Only ranks of the run can be shown.
            named = [cause for cause in causes if cause.rank < self._world]
            where = causes[0].place.where or place.where
            return self._hang(causes[0].kind, named, text, None, waiters, False, where=where)
        if self._age_s < RENDEZVOUS_S:
            return None
        text = f"{wait_for} in the rendezvous, which does not complete: see MASTER_ADDR, MASTER_PORT and the world size"
        return self._hang("unknown", [], text, None, waiters, False, where=place.where)

    def _outside(self) -> Conclusion | None:
        """Return the conclusion where no rank is in a collective: no rank is accused, unless nothing moves at all."""
        if (stopped := self._stopped()) is not None:
            return stopped
        if self._age_s < self._progress.bearable_s or not self._present:
            return None
        causes = [cause for rank in self._present if (cause := self._cause(rank)) is not None]
        # Where a rank is gone the others end, too: they are no news.
        if not causes or not self._progress.has_stepped or self._progress.gone:
            return None
        stuck = [cause for cause in causes if cause.kind in ("data", "waiting") and self._is_idle(cause.rank)]
        if len(stuck) == len(self._present) and self._age_s >= max(BUSY_S, self._progress.bearable_s):
            text = wording.accusation(stuck, None, (), self._world)
            return self._hang(stuck[0].kind, stuck, text, None, (), False)
        first = next((cause for cause in causes if cause.kind == "working"), causes[0])
        where = f" ({first.place.where})" if first.place.where else ""
        text = f"no step: no rank is in a collective, rank {first.rank} {first.says or 'stands'}{where}"
        return self._standing("all_outside", text, [first], None, ())

    def _is_idle(self, rank: int) -> bool:
        inspection, beat = self._last.get(rank), self._progress.beats.get(rank)
        loads = [
            cpu
            for cpu in (inspection and inspection.cpu_percent, beat and beat.cpu_percent)
            if isinstance(cpu, (int, float))
        ]
        return bool(loads) and max(loads) < IDLE

    def _place(self, rank: int) -> Place:
        return place_of(main_thread(self._last.get(rank)))

    def _hang(
        self,
        kind: str,
        causes: Sequence[Cause],
        text: str,
        wait: Wait | None,
        waiters: Collection[int],
        sure: bool,
        *,
        where: str = "",
        definite: bool = False,
    ) -> Conclusion:
        return Conclusion("hang", text, self._described(kind, causes, wait, waiters, sure, where), definite)

    def _standing(
        self, kind: str, text: str, causes: Sequence[Cause], wait: Wait | None, waiters: Collection[int]
    ) -> Conclusion:
        return Conclusion("standing", text, self._described(kind, causes, wait, waiters, True, ""))

    def _described(
        self,
        kind: str,
        causes: Sequence[Cause],
        wait: Wait | None,
        waiters: Collection[int],
        sure: bool,
        where: str,
    ) -> Hang:
        evidence = [] if wait is None else ["stacks" if self._waits.by_stacks else "record of collectives"]
        evidence += [each for cause in causes[:1] for each in cause.evidence if each not in evidence]
        members = self._world if wait is None else len(_members(wait, self._last)) or self._world
        waiting = "" if wait is None else wording.waiting(wait, waiters, members, self._place(wait.rank))
        timeout_at_ns, timeout_of = self._timeout()
        return Hang(
            kind=kind,
            # Of all ranks none is the cause.
            ranks=() if kind == "all_outside" or 1 < self._world == len(causes) else tuple(c.rank for c in causes),
            where=clean_line(where or (causes[0].place.where if causes else "")),
            # Where all wait for each other there are no others.
            waiting=clean_line(waiting) if waiters else "",
            evidence=", ".join(evidence),
            sure=sure,
            timeout_at_ns=timeout_at_ns,
            timeout_of=timeout_of,
        )

    def _timeout(self) -> tuple[int | None, str]:
        """Return when the first of the open calls runs into its timeout, and whose timeout that is."""
        found = []
        for waits in self._waits.waits.values():
            for wait in waits:
                group, beat = _group(wait, self._last), self._progress.beats.get(wait.rank)
                timeout_s = None if group is None else group.timeout_s
                if timeout_s is None and wait.call.group == DEFAULT_GROUP and beat is not None:
                    timeout_s = beat.timeout_s
                if timeout_s is not None:
                    # By the observer's clock: a rank may claim any time.
                    begun = self._case.looks[-1].at_ns - max(0, wait.call.open_ns)
                    of = wait.call.op if wait.call.op == NEW_GROUP else wording.group_of(wait)
                    found.append((max(0, begun + int(min(timeout_s, 1e9) * ONE)), of))
        if not found:
            return None, ""
        first = min(at_ns for at_ns, _ in found)
        # Of calls that began together it is the same at each look.
        return first, min(of for at_ns, of in found if at_ns < first + ONE)


def _group(wait: Wait, ranks: Mapping[int, Inspection]) -> GroupCalls | None:
    return next((group for group in ranks[wait.rank].groups if group.group == wait.call.group), None)


def _members(wait: Wait, ranks: Mapping[int, Inspection]) -> tuple[int, ...]:
    group = _group(wait, ranks)
    return () if group is None else group.ranks
