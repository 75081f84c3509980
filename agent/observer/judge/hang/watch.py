"""Watches a run for a hang: a suspicion by heartbeats, questions to its ranks, and a conclusion in the end.

As long as steps come no rank is asked anything.  A run that stands is looked at twice, a moment apart, and again as
long as it stands: whatever changes between two looks is progress, and only a run without any is said to hang.

A run in which some ranks stand and others make steps hangs, too, where the others have left out a collective in which
these wait for good.  It is said only where nothing else explains it: until then each step had a call of that group, and
since then the ranks ahead have made many steps without any.  Rank 0 that trains something for itself while the others
wait in a barrier, an average every hundred steps and steps of unequal length are nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.judge.hang.activity import Activity
from ddptop.agent.observer.judge.hang.looks import Look, has_advanced, main_thread, with_calls
from ddptop.agent.observer.judge.hang.place import place_of
from ddptop.agent.observer.judge.hang.progress import ONE, Progress
from ddptop.agent.observer.judge.hang.verdict import Case, Conclusion
from ddptop.agent.observer.judge.hang.waits import BARRIERS, is_usual, waits_of
from ddptop.agent.observer.judge.standstill import BEHIND_S
from ddptop.agent.text import clean_line, span
from ddptop.agent.wire import EACH_RECORD, GroupCalls, Inspection, OpenCall

BETWEEN_S: Final = 0.7
"""Seconds between two looks as long as there is no conclusion."""
AGAIN_S: Final = 5.0
"""Seconds between two looks at a run that hangs."""
_UNANSWERED_S: Final = 10.0
"""Seconds after which an answer is not waited for any more."""
_LOOKS: Final = 4
_MOST_CAUSES: Final = 8
"""Of a large group, ranks that may be the cause whose stacks are asked for."""
_MOST_WAITERS: Final = 4
_MOST_PLACES: Final = 256
_TRACED: Final = "tracing-stop"
"""The status of a process that a debugger, or a look at native frames, has stopped."""


@dataclass(frozen=True)
class Question:
    """A question to ranks."""

    ranks: tuple[int, ...]
    stacks: bool


class Watch:
    """The suspicion, the looks and the conclusion for one group of ranks."""

    def __init__(self, world: int, *, everyone: bool = True) -> None:
        """Know nothing yet; `everyone` says whether all ranks of the run are on this host."""
        self._world = world
        self._everyone = everyone
        self.round = 0
        """Number of the present time without a step: an answer to a question of an earlier one is too late."""
        self.restart()

    def restart(self) -> None:
        """Begin anew with other processes."""
        self.progress = Progress(everyone=self._everyone)
        self._steps = Steps()
        self._apart: Apart | None = None
        """The two sides of a run in which some ranks make steps and others wait."""
        self.conclusion: Conclusion | None = None
        """The verdict of this moment."""
        self.ceased_at_ns: int | None = None
        """When a run that was said to stand made its next step."""
        self._away: frozenset[int] = frozenset()
        """Ranks that had ended or were gone when that was concluded."""
        self._usual: dict[str, float] = {}
        self._clear()

    def _clear(self) -> None:
        self._looks: list[Look] = []
        self._activity = Activity()
        self._asked: Question | None = None
        self._asked_ns = 0
        self._due_ns = 0
        self._pause_s = BETWEEN_S
        """Seconds between looks without a conclusion, longer each time."""
        self._base: dict[int, wire.Inspection] = {}
        """Of a large group, all ranks without their stacks."""
        self._concerned: tuple[int, ...] = ()
        self.round += 1

    def beat(self, beat: wire.Beat, now_ns: int) -> None:
        """Take in a heartbeat."""
        stood_s = self.progress.beat(beat, now_ns)
        self._steps.beat(beat, now_ns)
        if stood_s is not None and self._apart is None:
            self._go_on(stood_s, self.progress.since_ns or now_ns)

    def sampled(self, message: wire.Sampled, now_ns: int) -> None:
        """Take in looks from outside at a rank without an agent."""
        stood_s = self.progress.sampled(message, now_ns)
        if stood_s is not None:
            self._go_on(stood_s if self.progress.has_stepped else 0.0, self.progress.since_ns or now_ns)

    def rest(self, now_ns: int) -> None:
        """Begin anew to count the time without a step: somebody has stopped the run on purpose."""
        self.progress.rest(now_ns)
        self._steps.rest(now_ns)
        self._apart = None
        self._withdraw(now_ns)

    @property
    def is_suspicious(self) -> bool:
        """Say whether the ranks are asked, or are to be asked again."""
        return self._asked is not None or bool(self._looks)

    @property
    def inspections(self) -> list[wire.Inspection]:
        """The newest inspections, by rank; of a large group those of the ranks whose stacks were asked for."""
        last = self._looks[-1].ranks if self._looks else {}
        return [last[rank] for rank in sorted(self._concerned or last) if rank in last]

    def stands(self, now_ns: int) -> bool:
        """Say whether the run, or a part of it, makes no step for longer than usual; False while held, or ended."""
        progress = self.progress
        whole = progress.age_s(now_ns) >= progress.patience_s
        apart = None if whole else self._steps.apart(progress, now_ns)
        if (apart is None) != (self._apart is None):
            self._withdraw(now_ns)
        self._apart = apart
        if not whole:
            return apart is not None
        if not progress.present and self.conclusion is not None and self.conclusion.kind == "hang":
            # Nobody is left to be asked, and the run ended in this hang.
            return False
        if progress.held or not progress.present:
            if self.conclusion is not None or self._looks:
                self._withdraw(now_ns)
            return False
        return True

    def question(self, now_ns: int) -> Question | None:
        """Return what is to be asked now of a run that stands, None where it is not time; the answer is expected."""
        if self._asked is not None and now_ns - self._asked_ns < _UNANSWERED_S * ONE:
            return None
        # A time that is further away was set before the clock was.
        if 0 < self._due_ns - now_ns <= AGAIN_S * ONE:
            return None
        ranks = tuple(self.progress.present)
        if self._apart is not None:
            question = Question(tuple(sorted({*self._apart.behind, *self._apart.ahead})), stacks=True)
        elif self._world <= EACH_RECORD:
            question = Question(ranks, stacks=True)
        elif self._concerned:
            question = Question(tuple(rank for rank in self._concerned if rank in ranks), stacks=True)
        else:
            question = Question(ranks, stacks=False)
        self._asked, self._asked_ns = question, now_ns
        return question

    def answer(self, found: Mapping[int, wire.Inspection], now_ns: int) -> None:
        """Take in the answers to the question that was asked last in this round."""
        question, self._asked = self._asked, None
        if question is None:
            return
        self._wait(now_ns, BETWEEN_S)
        if self._apart is not None:
            self._answer_apart(self._apart, found, now_ns)
            return
        if self._world > EACH_RECORD and not question.stacks:
            self._base = dict(found)
            self._concerned = self._choose(found)
            self._due_ns = now_ns
            return
        before = self._looks[-1].ranks if self._looks else self._base
        look = Look(now_ns, {**self._base, **{rank: with_calls(before.get(rank), found[rank]) for rank in found}})
        if self._looks and self._advanced(self._looks[-1], look):
            # A step that no heartbeat has shown yet; or work without steps, as the accumulation of gradients.
            stood_s = self.progress.age_s(now_ns) if self.progress.has_stepped else 0.0
            self.progress.rest(now_ns)
            self._go_on(stood_s, now_ns)
            return
        self._looks = [*self._looks[-_LOOKS + 1 :], look]
        self._activity.note(look.ranks)
        if len(self._looks) < 2:
            return
        if not self._keeps(before, look):
            self.conclusion = self._case().conclude(now_ns)
            self._away = self._ended()
        if self.conclusion is not None and self.conclusion.kind == "hang":
            self._wait(now_ns, AGAIN_S)
        elif self.conclusion is not None or len(self._looks) >= _LOOKS:
            self._pause_s = min(AGAIN_S, 1.5 * self._pause_s)
            self._wait(now_ns, self._pause_s)

    def _case(self) -> Case:
        return Case(self._looks, self.progress, self._world, self._usual, self._activity)

    def accept(self, conclusion: Conclusion, now_ns: int) -> None:
        """Take in a conclusion that needed no look at the ranks."""
        self.conclusion, self._away = conclusion, self._ended()
        self.progress.rest(now_ns)

    def _keeps(self, before: Mapping[int, wire.Inspection], look: Look) -> bool:
        """Say whether the hang that was found stays as it is, whatever this look seems to show.

        A debugger, and a look at native frames, stop a rank for a while; and of a run that hangs the ranks die one
        after the other, in which nobody is to be taken for the cause who only died first.
        """
        if self.conclusion is None or self.conclusion.kind != "hang":
            return False
        disturbed = any(
            each.status == _TRACED or (each.by != "agent" and rank in before and before[rank].by == "agent")
            for rank, each in look.ranks.items()
        )
        return disturbed or not self._away.issuperset(self._ended())

    def _ended(self) -> frozenset[int]:
        progress = self.progress
        return frozenset(progress.gone) | {rank for rank in progress.beats if progress.has_ended(rank)}

    def _answer_apart(self, apart: Apart, found: Mapping[int, wire.Inspection], now_ns: int) -> None:
        self._looks = [*self._looks[-1:], Look(now_ns, dict(found))]
        if len(self._looks) < 2:
            return
        ranks = leaving_out(self._looks, apart)
        self.conclusion = self._case().left_out(ranks, now_ns)
        self._pause_s = AGAIN_S if self.conclusion is not None else min(AGAIN_S, 1.5 * self._pause_s)
        self._wait(now_ns, self._pause_s)

    def finding(self, now_ns: int) -> wire.Verdict | None:
        """Return what is wrong at this moment, with the time that the run has stood."""
        if self.conclusion is None:
            return None
        conclusion, since_ns = self.conclusion, self.progress.since_ns or now_ns
        if self._apart is not None:
            since_ns = self._apart.since_ns
        return wire.Verdict(
            0,
            conclusion.kind,
            # Names of the user's files and functions may be of any length.
            f"{clean_line(conclusion.text)} · {span(max(0, now_ns - since_ns) / ONE)}",
            since_ns,
            rank=conclusion.hang.ranks[0] if conclusion.hang.ranks else None,
            urgent=conclusion.kind == "hang",
            hang=conclusion.hang,
        )

    def _go_on(self, stood_s: float, at_ns: int) -> None:
        """Begin anew after the run has stood for some time, and learn from it where it has gone on by itself."""
        if self.conclusion is None or self.conclusion.kind != "hang":
            self.progress.learn(stood_s)
            if self._looks:
                self._learn_places(stood_s)
        if self._looks or self._asked:
            self._withdraw(at_ns)

    def _withdraw(self, now_ns: int) -> None:
        if self.conclusion is not None:
            self.ceased_at_ns = now_ns
        self.conclusion = None
        self._clear()

    def _wait(self, now_ns: int, seconds: float) -> None:
        self._due_ns = now_ns + int(seconds * ONE)

    def _advanced(self, before: Look, after: Look) -> bool:
        # Of a large group those that were not asked again are the same objects.
        return any(
            (known := before.ranks.get(rank)) is not None and known is not each and has_advanced(known, each)
            for rank, each in after.ranks.items()
        )

    def _choose(self, found: Mapping[int, wire.Inspection]) -> tuple[int, ...]:
        """Return the ranks of a large group to be asked for stacks: those that may be the cause, and some others."""
        present = self.progress.present
        waits = waits_of(found, self._world, present, self._ended(), self.progress.calls)
        silent = [rank for rank in present if rank not in found or found[rank].by != "agent"]
        likely = sorted(waits.causes & set(present)) or silent
        chosen = dict.fromkeys([*likely[:_MOST_CAUSES], *sorted(waits.circle)[:_MOST_CAUSES]])
        others = [rank for rank in present if rank not in chosen]
        chosen |= dict.fromkeys(others[:_MOST_WAITERS])
        return tuple(chosen)

    def _learn_places(self, stood_s: float) -> None:
        """Remember where ranks stood in a time without a step that has ended by itself."""
        for inspection in self._looks[-1].ranks.values():
            if inspection.open:
                continue
            function = place_of(main_thread(inspection)).function
            if function:
                self._usual[function] = max(stood_s, self._usual.pop(function, 0.0))
        while len(self._usual) > _MOST_PLACES:
            del self._usual[next(iter(self._usual))]


STEPS: Final = 20
"""Steps by which the others are ahead of it."""
_MOST_ASKED: Final = 8
"""Ranks that are asked, of those behind and of those ahead each."""


@dataclass(frozen=True)
class Apart:
    """Ranks that stand, and ranks that make steps."""

    behind: tuple[int, ...]
    ahead: tuple[int, ...]
    since_ns: int
    """When the first of those behind made its last step, by the observer's clock."""


class Steps:
    """The newest step of each rank."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._newest: dict[int, tuple[int, int]] = {}
        """By rank, its step, and when that was heard."""

    def beat(self, beat: wire.Beat, now_ns: int) -> None:
        """Take in a heartbeat."""
        known = self._newest.get(beat.rank)
        if known is None or beat.step != known[0]:
            self._newest[beat.rank] = beat.step, now_ns

    def rest(self, now_ns: int) -> None:
        """Begin anew to count the time without a step."""
        self._newest = {rank: (step, now_ns) for rank, (step, _) in self._newest.items()}

    def apart(self, progress: Progress, now_ns: int) -> Apart | None:
        """Return who stands and who does not; None where all do the same."""
        if progress.held:
            return None
        newest = {rank: self._newest[rank] for rank in progress.present if rank in self._newest}
        fresh_ns = int(progress.patience_s * ONE)
        ahead = [rank for rank, (_, at_ns) in newest.items() if now_ns - at_ns < fresh_ns]
        most = max((newest[rank][0] for rank in ahead), default=0)
        behind = [
            rank
            for rank, (step, at_ns) in newest.items()
            if now_ns - at_ns >= max(BEHIND_S * ONE, fresh_ns) and 0 < step <= most - STEPS
        ]
        if not behind:
            return None
        least = min(newest[rank][0] for rank in behind)
        ahead = [rank for rank in ahead if newest[rank][0] >= least + STEPS]
        since_ns = min(newest[rank][1] for rank in behind)
        return Apart(tuple(behind[:_MOST_ASKED]), tuple(ahead[:_MOST_ASKED]), since_ns)


def leaving_out(looks: Sequence[Look], apart: Apart) -> frozenset[int]:
    """Return the ranks ahead that have left out the call in which one of those behind waits.

    Args:
        looks: at two moments at least, oldest first.
        apart: who was asked.
    """
    first, last = looks[0].ranks, looks[-1].ranks
    found: set[int] = set()
    for rank in apart.behind:
        before, after = first.get(rank), last.get(rank)
        if before is None or after is None or not (before.observed and after.observed) or before.step != after.step:
            continue
        for call in after.open:
            if _is_of_each_step(call, after) and any(_same(call, each) for each in before.open):
                found |= {
                    other
                    for other in apart.ahead
                    if other in first and other in last and _leaves_out(call, after, first[other], last[other])
                }
    return frozenset(found)


def _is_of_each_step(call: OpenCall, waiter: Inspection) -> bool:
    return call.op not in BARRIERS and call.number > waiter.step > 0 and is_usual(call, waiter)


def _leaves_out(call: OpenCall, waiter: Inspection, before: Inspection, after: Inspection) -> bool:
    """Say whether a rank has made many steps without that call, and without any other one of the group."""
    group = _group(waiter, call.group)
    if not (before.observed and after.observed) or (group and group.ranks and after.rank not in group.ranks):
        return False
    made = _made(after, call.group)
    return made < call.number and made == _made(before, call.group) and waiter.step + STEPS <= before.step < after.step


def _same(one: OpenCall, other: OpenCall) -> bool:
    return (one.op, one.group, one.number) == (other.op, other.group, other.number)


def _group(inspection: Inspection, name: str) -> GroupCalls | None:
    return next((group for group in inspection.groups if group.group == name), None)


def _made(inspection: Inspection, name: str) -> int:
    group = _group(inspection, name)
    return 0 if group is None else group.calls
