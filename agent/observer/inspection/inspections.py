"""Where ranks stand, asked of their agents; those that do not answer in half a second are looked at from outside.

Everything here is for the relay's thread, except for the looks themselves: they take up to a second, on threads of
their own, a few at a time.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.inspection import outside, work
from ddptop.agent.run.rundir import Member, Run

ANSWER_S: Final = 2.0
"""Seconds after a question at which looks from outside are given up, and it is answered with what is known."""
NATIVE_S: Final = 10.0
"""Seconds instead of these where frames of C and C++ are asked for: to find their names takes seconds."""
_LOOK_S: Final = 0.7
"""Seconds that a look has at least, however late it begins."""
_STUCK_S: Final = 1.0
"""Seconds after which a look that has not ended is not waited for: the file system it reads hangs."""
_AT_A_TIME: Final = 2
"""Looks at a time, each at all the ranks that are waited for."""
_OBSERVER: Final = b"\0observer"
"""Stands for the observer itself among those who ask; names of onlookers do not look like it."""
_UNSEEN: Final = "it does not answer, and could not be looked at from outside: too many others wait; ask again"

Then = Callable[[dict[int, wire.Inspection]], object]
Forward = Callable[[bytes, int, wire.Command, Callable[[bytes, int, wire.Reply], object]], None]
"""Passes a command on to a rank; see `Forwarding.forward`."""


@dataclass(eq=False)
class _Question:
    members: dict[int, Member]
    """Those on this host."""
    then: Then
    stacks: bool
    native: bool
    give_up: float
    waiting: set[int]
    """Ranks whose agents may still answer."""
    found: dict[int, wire.Inspection] = field(default_factory=dict)

    @property
    def missing(self) -> dict[int, Member]:
        """The ranks that are to be looked at from outside."""
        return {rank: member for rank, member in self.members.items() if self.native or rank not in self.found}


class Inspections:
    """The questions of where ranks stand, and the answers."""

    def __init__(
        self,
        forward: Forward,
        wake: Callable[[], None],
        run: Run,
        *,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[..., dict[int, wire.Inspection]] = outside.look,
    ) -> None:
        """Prepare.

        Args:
            forward: passes a command on to a rank, and answers in place of one that is silent.
            wake: makes the relay's thread call `turn`; may be called from any thread.
            run: the run.
            clock: in seconds.
            look: at processes, from outside.
        """
        self._forward = forward
        self._wake = wake
        self._script = ""
        """Absolute path of the run's script; empty where the program is a module, or its folder is not known."""
        if run.cwd and run.program.endswith(".py"):
            self._script = os.path.join(run.cwd, run.program)
        self._clock = clock
        self._look = look
        self._members: dict[int, Member] = {}
        self._own_bytes: dict[int, int] = {}
        """Bytes that the agents of ranks have moved, by their newest messages."""
        self._works = work.Works()
        self._elsewhere: set[int] = set()
        """Ranks on other hosts."""
        self._unseen: list[_Question] = []
        """Questions of which ranks have to be looked at, and are not yet."""
        self._watched: list[list[_Question]] = []
        """Those of each look that goes on."""
        self._looked: queue.SimpleQueue[tuple[list[_Question], dict[int, wire.Inspection]]] = queue.SimpleQueue()
        self._busy = 0
        """Threads that look, those included that are not waited for any more."""
        self._ready: list[_Question] = []

    def meet(self, member: Member, *, elsewhere: bool = False) -> None:
        """Take note of a rank, or of the process that has its place now.

        Args:
            member: its record.
            elsewhere: it is on another host, whose observer looks at it from outside; its pid here is another process.
        """
        self._members[member.rank] = member
        self._own_bytes.pop(member.rank, None)
        (self._elsewhere.add if elsewhere else self._elsewhere.discard)(member.rank)

    def ask(
        self, ranks: Collection[int], then: Then, *, stacks: bool, native: bool = False, asker: bytes = _OBSERVER
    ) -> None:
        """Ask where ranks stand.

        Args:
            ranks: of the run; one that was never found is not in the answer.
            then: called once, later, on the relay's thread, with all that is known; at most about two seconds later,
                ten for native frames.
            stacks: also for the stacks of their threads.
            native: with the frames of C and C++, which only a look from outside has: each process stands still
                meanwhile, for a second or two.
            asker: whoever asks, for the bound on what waits for one.
        """
        members = {rank: self._members[rank] for rank in ranks if rank in self._members}
        give_up = self._clock() + (NATIVE_S if native else ANSWER_S)
        near = {rank: member for rank, member in members.items() if rank not in self._elsewhere}
        question = _Question(near, then, stacks, native, give_up, set(members))
        for rank in members:
            command = wire.Inspect(0, stacks, native and rank in self._elsewhere)
            self._forward(asker, rank, command, functools.partial(self._answered, question))
        if not members:
            self._finish(question)

    def _answered(self, question: _Question, _: bytes, rank: int, reply: wire.Reply) -> None:
        if rank not in question.waiting:
            return
        question.waiting.discard(rank)
        told = reply.inspection
        if told is not None and told.rank == rank:
            question.found[rank] = told
        if question.waiting:
            return
        if question.missing:
            self._unseen.append(question)
            self._wake()
        else:
            self._finish(question)

    def _finish(self, question: _Question) -> None:
        self._ready.append(question)
        self._wake()

    def turn(self) -> None:
        """Answer the questions to which the answer is there, and begin the looks that are due."""
        while not self._looked.empty():
            questions, seen = self._looked.get_nowait()
            self._busy -= 1
            if questions in self._watched:
                self._watched.remove(questions)
                self._close(questions, seen)
        now = self._clock()
        for questions in [each for each in self._watched if now > _stuck_at(each)]:
            self._watched.remove(questions)
            self._close(questions, {})
        self._begin(now)
        while self._ready:
            question = self._ready.pop(0)
            question.then(self._with_work(question) if question.stacks else question.found)

    def _with_work(self, question: _Question) -> dict[int, wire.Inspection]:
        """Return the answers with the work of those ranks that do not stand in a call themselves."""
        asked = {
            rank: member.process
            for rank, member in question.members.items()
            if not any(call.blocking for call in question.found[rank].open)
        }
        for rank, each in question.found.items():
            if each.own_bytes is not None:
                self._own_bytes[rank] = each.own_bytes
        members = {member.process.pid for member in self._members.values()}
        trainers = {
            rank: thread.native_id
            for rank in asked
            for thread in question.found[rank].threads
            if thread.main and thread.native_id is not None
        }
        found = self._works.measure(asked, self._own_bytes, members, trainers) if asked else {}
        return {
            rank: msgspec.structs.replace(each, work=found[rank]) if rank in found else each
            for rank, each in question.found.items()
        }

    def _begin(self, now: float) -> None:
        """Look at the ranks of all questions of one kind at once: onlookers ask for each rank by itself."""
        while self._unseen and self._busy < _AT_A_TIME:
            kind = self._unseen[0].stacks, self._unseen[0].native
            questions = [each for each in self._unseen if (each.stacks, each.native) == kind]
            self._unseen = [each for each in self._unseen if (each.stacks, each.native) != kind]
            members: dict[int, Member] = {}
            for question in questions:
                members |= question.missing
            until = max(now + _LOOK_S, min(question.give_up for question in questions))
            look = functools.partial(
                self._look, members, stacks=kind[0], native=kind[1], until=until, script=self._script
            )
            for question in questions:
                question.give_up = max(question.give_up, until)
            try:
                threading.Thread(target=self._work, args=(questions, look), name="look", daemon=True).start()
            except RuntimeError:
                # No more threads can be started.
                self._close(questions, {})
                continue
            self._busy += 1
            self._watched.append(questions)
        late = [question for question in self._unseen if now > question.give_up + _STUCK_S]
        self._unseen = [question for question in self._unseen if question not in late]
        self._close(late, {})

    def _work(self, questions: list[_Question], look: Callable[[], dict[int, wire.Inspection]]) -> None:
        seen: dict[int, wire.Inspection] = {}
        try:
            seen = look()
        finally:
            self._looked.put((questions, seen))
            self._wake()

    def _close(self, questions: list[_Question], seen: dict[int, wire.Inspection]) -> None:
        for question in questions:
            for rank, member in question.missing.items():
                by_agent = question.found.get(rank)
                by_look = seen.get(rank) or _unseen(member)
                question.found[rank] = by_look if by_agent is None else _joined(by_agent, by_look)
            self._ready.append(question)

    @property
    def pause_s(self) -> float | None:
        """Seconds to wait before the next `turn`, if nothing wakes the relay before; None where nothing is due."""
        if self._ready or (self._unseen and self._busy < _AT_A_TIME):
            return 0.0
        due: list[Any] = [_stuck_at(questions) for questions in self._watched]
        due += [question.give_up + _STUCK_S for question in self._unseen]
        return max(0.0, min(due) - self._clock()) if due else None


def _stuck_at(questions: list[_Question]) -> float:
    return max(question.give_up for question in questions) + _STUCK_S


def _unseen(member: Member) -> wire.Inspection:
    return wire.Inspection(
        member.rank, time.time_ns(), "system", member.process.pid, problem=_UNSEEN, generation=member.generation
    )


def _joined(by_agent: wire.Inspection, by_look: wire.Inspection) -> wire.Inspection:
    """Return the agent's answer, with the stacks from outside where there are any."""
    found = msgspec.structs.replace(
        by_agent,
        status=by_look.status or by_agent.status,
        traced_by=by_look.traced_by,
        swapped_bytes=by_look.swapped_bytes,
        page_reads_per_s=by_look.page_reads_per_s,
        memory_bytes=by_look.memory_bytes,
        moved_bytes=by_look.moved_bytes,
        problem=by_look.problem or by_agent.problem,
    )
    if not by_look.threads:
        return found
    return msgspec.structs.replace(
        found, by=by_look.by, threads=by_look.threads, threads_left_out=by_look.threads_left_out
    )
