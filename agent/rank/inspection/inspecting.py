"""The whole answer to `Inspect`: where this rank stands, in its code and in its collectives."""

from __future__ import annotations

import sys
import time
from typing import Final

import msgspec

from ddptop.agent.rank.collectives import recorder, timing, wrapper
from ddptop.agent.rank.collectives.backends import LONGEST, RECENT, Counted
from ddptop.agent.rank.collectives.open_calls import Open
from ddptop.agent.rank.collectives.timing import Collectives
from ddptop.agent.rank.faults import Faults, describe
from ddptop.agent.rank.inspection.frames import DeadThreads, current, exceptions
from ddptop.agent.rank.inspection.stacks import Stacks, bytes_of_this_thread, own_sources
from ddptop.agent.rank.records.stamps import Call
from ddptop.agent.run.identity import Process, look
from ddptop.agent.wire import GroupCalls, Inspection, OpenCall, PastCall

MOST_GROUPS: Final = 64
MOST_OPEN: Final = 128
"""Groups, those with the newest calls, and open calls, the oldest, of an answer at most."""
_MOST_RANKS: Final = 8_192
"""Ranks that are listed, those of all groups together; those of further groups are not."""
_LONGEST_OP: Final = 40
"""Characters of the name of an operation."""
_STILL_NS: Final = 1_000_000_000
"""Time without a call after which the rank stands still."""


class Inspecting:
    """Answers for one rank; for use from the agent's thread."""

    def __init__(self, collectives: Collectives, faults: Faults, process: Process, began_ns: int) -> None:
        """Prepare; `began_ns` is the start of the process, since the epoch."""
        self._collectives = collectives
        self._faults = faults
        self._process = process
        self._began_s = began_ns / 1e9
        self._stacks: Stacks | None = None
        self.dead_threads = DeadThreads()
        self._step = 0
        self._noticed: frozenset[int] = frozenset()
        """`id` of the exceptions that were handled when that step was noticed."""
        self._outlasted: frozenset[int] = frozenset()
        """Those during whose handling steps were made: the training goes on in there."""

    def notice(self, step: int) -> None:
        """Take note of the newest step, once a second."""
        if step != self._step:
            now = frozenset(id(error) for error, _ in exceptions().values())
            self._step, self._outlasted, self._noticed = step, now & self._noticed, now

    def inspect(self, rank: int, *, stacks: bool) -> Inspection:
        """Return where the rank stands: all that could be read, and the problem where something could not."""
        found = Inspection(rank, time.time_ns(), "agent", self._process.pid, dead_thread=self.dead_threads.last)
        if (row := look(self._process)) is not None:
            found = msgspec.structs.replace(found, status=row.status)
        # A failed device raises in each question; the stacks are sent all the same.
        try:
            found = self._with_calls(found)
        except Exception as error:
            found = self._with_problem(found, "reading its collectives", error)
        if stacks:
            try:
                found = self._with_stacks(found)
            except Exception as error:
                found = self._with_problem(found, "reading its stacks", error)
        if (moved := bytes_of_this_thread()) is not None:
            read = 0 if self._stacks is None else self._stacks.read_bytes
            found = msgspec.structs.replace(found, own_bytes=moved + read)
        return found

    def newest_calls(self) -> GroupCalls | None:
        """Return the calls of the group that was called last; None where none was, or they cannot be read."""
        try:
            groups = [each for each in tuple(self._collectives.groups.values()) if each.recent]
            newest = max(groups, key=lambda each: each.recent[-1].entered, default=None)
            return None if newest is None else _calls_of(newest.recent[-1].group, newest, ())
        except Exception as error:
            self._faults.note("reading its newest collectives", error)
            return None

    def _with_problem(self, found: Inspection, what: str, error: Exception) -> Inspection:
        self._faults.note(what, error)
        return msgspec.structs.replace(found, problem=f"{what}: {describe(error)}")

    def _with_stacks(self, found: Inspection) -> Inspection:
        # The script is known only now: it has replaced the runner as `__main__`.
        stacks = self._stacks = self._stacks or Stacks(own_sources(), self._began_s)
        training = self._collectives.thread
        threads, left_out = stacks.take(training)
        exception, raised_at = stacks.exception(self._outlasted, training)
        return msgspec.structs.replace(
            found, threads=threads, threads_left_out=left_out, exception=exception, raised_at=raised_at
        )

    def _with_calls(self, found: Inspection) -> Inspection:
        collectives = self._collectives
        # Nobody refers to the frame for longer: it holds what the function holds.
        opened = collectives.open(current().get(collectives.thread or 0))
        if collectives.mechanism in (timing.HOOKS, wrapper.WRAPPER):
            opened = self._settled(opened)
            now = collectives.now()
            calls = [_open_call(each, now) for each in opened[:MOST_OPEN]]
            groups = _groups(collectives.groups)
            if (forming := collectives.forming) is not None and forming.ranks:
                calls.append(OpenCall("new_group", forming.name, 0, 0, now - forming.began, blocking=True))
                groups += (GroupCalls(forming.name, 0, forming.ranks[:_MOST_RANKS], timeout_s=forming.timeout_s),)
            return msgspec.structs.replace(found, open=tuple(calls), groups=groups, observed=collectives.observed)
        recorded = recorder.entries(sys.modules.get("torch"))
        return msgspec.structs.replace(
            found,
            open=tuple(_recorded_open(each) for each in recorded if each.is_open)[:MOST_OPEN],
            groups=_recorded_groups(recorded, collectives.groups),
            observed=bool(recorded) or collectives.observed,
        )

    def _settled(self, opened: list[Open]) -> list[Open]:
        """Return the open calls; torch's record decides on those that are not sure, where the rank stands still."""
        collectives = self._collectives
        newest = {name: counted.recent[-1] for name, counted in collectives.groups.items() if counted.recent}
        is_unsure = any(not each.sure and each.call.number for each in opened)
        now = collectives.now()
        if not is_unsure or any(now - call.entered < _STILL_NS for call in newest.values()):
            return opened
        recorded: dict[str, dict[int, recorder.Entry]] = {}
        for entry in recorder.entries(sys.modules.get("torch")):
            recorded.setdefault(entry.group[:LONGEST], {})[entry.collective_seq_id] = entry
        wall = time.time_ns() - now
        settled = []
        for each in opened:
            same = None
            if not each.sure and each.call.group in newest:
                same = _same(each.call, newest[each.call.group], recorded.get(each.call.group, {}), wall)
            if same is None:
                settled.append(each)
            elif same.is_open:
                settled.append(each._replace(sure=True))
        return settled


def _same(call: Call, newest: Call, entries: dict[int, recorder.Entry], wall: int) -> recorder.Entry | None:
    """Return torch's entry of a call, None where it is not known which that is.

    Torch does not count all that we count: the newest of both is the same call, if it was made at the same time, and
    the others are as far before it.

    Args:
        call: a call.
        newest: the newest call of its group.
        entries: torch's entries of the group, by number.
        wall: nanoseconds since the epoch at which the clock of the calls was 0.
    """
    last = max(entries, default=0)
    if last not in entries or abs(entries[last].time_created_ns - wall - newest.entered) > _SLACK_NS:
        return None
    return entries.get(last - (newest.number - call.number))


_SLACK_NS: Final = 100_000_000
"""Time between a call and torch's own note of it at most, either way: the clocks are read one after the other."""


def _open_call(each: Open, now: int) -> OpenCall:
    call = each.call
    return OpenCall(
        op=call.op[:_LONGEST_OP],
        group=call.group[:100],
        number=call.number,
        bytes=min(call.bytes, 1 << 53),
        open_ns=now - call.entered,
        blocking=each.blocking,
        sure=each.sure,
        form=_form(call),
    )


def _form(call: Call) -> str:
    if call.form is None:
        return ""
    dtype, shape = call.form
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


def _groups(known: dict[str, Counted]) -> tuple[GroupCalls, ...]:
    """Return the calls of the groups that exist, those with the newest calls if there are too many."""
    groups = [(name, counted) for name, counted in tuple(known.items()) if counted.group() is not None]
    groups.sort(key=lambda each: each[1].recent[-1].entered if each[1].recent else 0, reverse=True)
    found, room = [], _MOST_RANKS
    for name, counted in groups[:MOST_GROUPS]:
        ranks = _ranks(counted, room)
        room -= len(ranks)
        found.append(_calls_of(name, counted, ranks))
    return tuple(sorted(found, key=lambda each: each.group))


def _calls_of(name: str, counted: Counted, ranks: tuple[int, ...]) -> GroupCalls:
    recent = (PastCall(call.op[:_LONGEST_OP], min(call.bytes, 1 << 53), _form(call)) for call in counted.recent)
    return GroupCalls(name, counted.calls, ranks, tuple(recent), counted.timeout_s)


def _ranks(counted: Counted, room: int = _MOST_RANKS) -> tuple[int, ...]:
    try:
        ranks = tuple(sys.modules["torch"].distributed.get_process_group_ranks(counted.group()))
    except Exception:  # the group is being destroyed, or its ranks are known to no one
        return ()
    return ranks if len(ranks) <= room else ()


def _recorded_open(entry: recorder.Entry) -> OpenCall:
    age = max(0, time.time_ns() - entry.time_created_ns)
    return OpenCall(
        entry.op[:_LONGEST_OP], entry.group[:LONGEST], max(0, entry.collective_seq_id), entry.bytes, min(age, 1 << 53)
    )


def _recorded_groups(recorded: list[recorder.Entry], known: dict[str, Counted]) -> tuple[GroupCalls, ...]:
    groups: dict[str, list[recorder.Entry]] = {}
    for entry in recorded:
        groups.setdefault(entry.group[:LONGEST], []).append(entry)
    return tuple(
        GroupCalls(
            name,
            max(0, *(entry.collective_seq_id for entry in entries)),
            _ranks(known[name]) if name in known else (),
            tuple(PastCall(entry.op[:_LONGEST_OP], entry.bytes) for entry in entries[-RECENT:]),
        )
        for name, entries in sorted(groups.items())[:MOST_GROUPS]
    )
