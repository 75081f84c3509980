"""Where the ranks stood when the run failed: the line of a crash, and the collectives in which they parted.

A collective in which ranks do not agree kills whoever notices it first, in the words of gloo or NCCL; the stacks that
the ranks left behind (tracebacks, crash dumps) show which rank called what.
"""

from __future__ import annotations

import contextlib
import math
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from ddptop.agent.end import kinds, traces
from ddptop.agent.end.mismatch import DEFAULT_GROUP, difference
from ddptop.agent.run.files import tail
from ddptop.agent.run.records import Member
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.text import clean_line, ranks_in_spans
from ddptop.agent.wire import PastCall

_LOG_BYTES: Final = 64 << 10
"""Bytes at the end of a rank's log in which its crash dump is looked for."""
_BEFORE_NS: Final = 10_000_000_000
"""How long before it leaves the others a rank prints the exception that has to do with that."""
_MOST_LOGS: Final = 64
"""Ranks whose stacks are compared at most."""
_SIZES: Final = r"op\.preamble\.length <= op\.nbytes\. (\d{1,18}) vs (\d{1,18})"
_CRASHES: Final = (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE)
_BACKWARD: Final = "_engine_run_backward"


class Apart(NamedTuple):
    """Ranks that did not do the same."""

    kind: str
    text: str
    """The ranks and their calls, one line."""
    rank: int | None
    """The one rank that differs from the others, None where it is not one."""


@dataclass(frozen=True, slots=True)
class LastWords:
    """The traces that the ranks left behind."""

    kind: str
    """The kind of the first rank's end."""
    place: str = ""
    """` at train.py:31 main`, for a crash; empty where it is not known, or where the exception says it."""
    apart: Apart | None = None


class _Call(NamedTuple):
    """The collective in which a rank stood."""

    name: str
    place: str

    def text(self, form: str = "") -> str:
        """Return `all_reduce float32[64] (train.py:12 main)`; `form`: type and shape of what it was called with."""
        call = f"{self.name} {form}" if form else self.name
        return f"{call} ({self.place})" if self.place else call


def output_of(log: Path, begin: int = 0) -> str:
    """Return the end of what a rank has printed, and after it what it wrote as it crashed, where that is apart.

    Args:
        log: its log.
        begin: bytes of it that were there before the rank began.
    """
    # See `RunDir.rank_crash`.
    crash = tail.end(log.with_suffix(".crash"), _LOG_BYTES)
    printed = tail.end(log, _LOG_BYTES, begin)
    return f"{printed}\n{crash}" if crash else printed


def of_ranks(
    members: Mapping[int, Member],
    first: int,
    directory: RunDir | None,
    codes: Mapping[int, int],
    torchrun_log: str = "",
    out_of_memory: bool | None = None,
) -> LastWords:
    """Return what is known of the end of the rank that failed first, and of the ranks beside it.

    Args:
        members: the records of the ranks.
        first: the rank.
        directory: of the run, with the logs of its ranks; None where no log is read.
        codes: exit codes of the ranks' processes, negative for a signal.
        torchrun_log: the end of torchrun's log, for a rank that ended before its agent began.
        out_of_memory: whether the kernel counted an out-of-memory kill at the end of the first rank, None if not known.
    """
    member = members.get(first)
    ended = None if member is None else member.ended
    code = codes.get(first)
    output = ""
    if directory is not None and (ended is None or ended.exit_code is None):
        output = output_of(directory.output(first), 0 if member is None else member.log_begin) or torchrun_log
    dump = traces.crash(output) if code in _CRASHES else None
    printed = output if dump is None else dump.before
    error = None if ended is None or not ended.exit_code else ended.error or f"SystemExit: {ended.exit_code}"
    trace = "" if ended is None else ended.traceback or ""
    late = ended is not None and ended.exit_code == 0
    kind = kinds.LATE_ABORT if late else kinds.recognize(error, code, _last_of(printed), trace, out_of_memory)
    if kind is kinds.EXIT and error is None and (said := kinds.recognize(_last_error(printed), None)) in kinds.TABLE:
        # `os._exit` after an error that the script has printed itself.
        kind = said
    if kind is kinds.ABORTED and not printed.strip() and dump and dump.stack.collective and _is_gloo(members):
        # It says why on the terminal that started a job by hand, which nobody reads; what can be read says otherwise.
        kind = kinds.MISMATCH
    if kind.name == "native_crash" and dump is not None and dump.stack.repeats:
        kind = kinds.RECURSION
    user = None if dump is None else dump.stack.user
    place = f" at {clean_line(user.text, 100)}" if user is not None else ""
    apart = None
    if kind in (kinds.MISMATCH, kinds.TIMEOUT, kinds.LOST_PEER, kinds.LATE_ABORT):
        stood = _stood(members, directory, codes)
        apart = _apart(kind, first, members, stood, codes, f"{error or ''} {printed}")
        if apart is not None and apart.rank is not None and (words := went_on(members[apart.rank], directory)):
            apart = apart._replace(text=f"{apart.text}; {words}")
    return LastWords(kind.name, place, apart)


def went_on(member: Member, directory: RunDir | None, left_at_ns: int = 0) -> str:
    """Return the exception that a rank printed last and went on after; empty where it printed none, or left by it.

    Args:
        member: its record.
        directory: of the run, with its log; None where no log is read.
        left_at_ns: when it left the others, where its script has not ended: what it printed long before is of no
            concern.
    """
    ended = member.ended
    if directory is None or (ended is not None and ended.exit_code):
        return ""
    log = directory.output(member.rank)
    with contextlib.suppress(OSError):
        if log.stat().st_mtime_ns < (left_at_ns if ended is None else ended.at_ns) - _BEFORE_NS:
            return ""
    found = traces.printed(tail.end(log, _LOG_BYTES, member.log_begin))
    if not found:
        return ""
    user = traces.of_traceback(found).user
    at = f" ({clean_line(user.text, 100)})" if user is not None else ""
    return f"before that it printed {clean_line(found.splitlines()[-1], 200)}{at}, and went on"


def _is_gloo(members: Mapping[int, Member]) -> bool:
    """Say whether the ranks talk over gloo, by what those say that have lost a peer."""
    return any(each.ended is not None and "gloo/transport/" in (each.ended.error or "") for each in members.values())


def _last_of(output: str) -> str:
    """Return the last lines of an output: what came long before has nothing to do with its end."""
    return "\n".join(output.splitlines()[-30:])


def _last_error(output: str) -> str:
    return next((line for line in reversed(_last_of(output).splitlines()) if re.match(r"[\w.]+Error\b", line)), "")


def _stood(members: Mapping[int, Member], directory: RunDir | None, codes: Mapping[int, int]) -> dict[int, _Call]:
    """Return, by rank, the collective in which it stood at its end, of those that have left a stack."""
    found = {}
    for rank, member in list(members.items())[:_MOST_LOGS]:
        stack = traces.Stack()
        if member.ended is not None and member.ended.traceback:
            stack = traces.of_traceback(member.ended.traceback, recorded=True)
        elif directory is not None and codes.get(rank) in _CRASHES:
            dump = traces.crash(output_of(directory.output(rank), member.log_begin))
            stack = traces.Stack() if dump is None else dump.stack
        name = stack.collective
        if not name and any(spot.function == _BACKWARD for spot in stack.frames):
            name = "backward"
        if name:
            user = stack.user
            found[rank] = _Call(clean_line(name, 60), clean_line(user.text, 100) if user is not None else "")
    return found


def _apart(
    kind: kinds.Kind,
    first: int,
    members: Mapping[int, Member],
    stood: Mapping[int, _Call],
    codes: Mapping[int, int],
    said: str,
) -> Apart | None:
    finished = [
        rank for rank, each in members.items() if (codes.get(rank) if each.ended is None else each.ended.exit_code) == 0
    ]
    if finished and stood:
        without_word = all(members[rank].ended is None for rank in finished)
        left = (
            "exited with code 0"
            if without_word
            else f"finished {'its script' if len(finished) == 1 else 'their scripts'}"
        )
        at = {each.left_at for rank in finished if (each := members[rank].ended) is not None and each.left_at}
        if len(finished) == 1 and at:
            left += f" by sys.exit ({clean_line(at.pop(), 100)})"
        text = f"{ranks_in_spans(finished)} {left} while "
        text += f"{ranks_in_spans(stood)} still stood in {next(iter(stood.values())).text()}"
        return Apart(kinds.LEFT_EARLY.name, text, finished[0] if len(finished) == 1 else None)
    if not stood or kind not in (kinds.MISMATCH, kinds.TIMEOUT):
        return None
    if kind is kinds.MISMATCH and codes.get(first) == -signal.SIGABRT and first in stood:
        # gloo gives up over a size only in the same collective, and there only where more comes than fits: the others
        # may have gone on to another call meanwhile.
        stood = {rank: call for rank, call in stood.items() if call.name == stood[first].name}
    # Of as many ranks on both sides that one is named first which failed first.
    calls = sorted(
        set(stood.values()), key=lambda call: (sum(each == call for each in stood.values()), call != stood.get(first))
    )
    if len(calls) > 1 or kind is kinds.MISMATCH:
        parts = _parts(members, stood, calls)
        least, most = parts[0], parts[-1]
        one = least.ranks[0] if len(least.ranks) == 1 < len(most.ranks) and least is not most else None
        if len(calls) > 1:
            text = f"{ranks_in_spans(least.ranks)} called {least.call}"
            text += f" where {ranks_in_spans(most.ranks)} called {most.call}"
        elif len(parts) > 1:
            # The line is the same for all.
            text = ", ".join(f"{ranks_in_spans(each.ranks)} {each.form}" for each in parts)
            text = text.replace(f" {least.form}", f" called {calls[0].name} {least.form}", 1)
            text += f" ({calls[0].place})" if calls[0].place else ""
        else:
            sizes = re.search(_SIZES, said)
            other = "sizes that do not match" if len(stood) > 1 else "another size than its peers"
            text = f"{ranks_in_spans(stood)} called {least.call} with {other}"
            one = first if len(stood) == 1 else None
            if sizes and (odd := _odd_by_segments(members, stood, first, int(sizes[1]), int(sizes[2]))) is not None:
                others = [rank for rank in members if rank != odd]
                size = "a larger" if odd != first else "a smaller"
                text = f"rank {odd} called {calls[0].name} with {size} size than {ranks_in_spans(others)}, "
                text += f"{calls[0].text(least.form).partition(' ')[2]}"
                one = odd
            text += f": {int(sizes[1]):,} bytes came where {int(sizes[2]):,} were expected" if sizes else ""
        if one is not None and _is_ahead(members, one):
            text += f": rank {one} is one call ahead"
        return Apart(kinds.MISMATCH.name, text, one)
    call = calls[0]
    missing = [rank for rank in members if rank not in stood and codes.get(rank) in (None, -signal.SIGTERM)]
    if not missing:
        return None
    calls_of = [ended.calls for rank in stood if (ended := members[rank].ended) is not None and ended.calls]
    of = f", group {calls_of[0].group}" if calls_of and calls_of[0].group != DEFAULT_GROUP else ""
    waited = f"{call.text()}{of}, in which {ranks_in_spans(stood)} waited until the timeout"
    text = f"{ranks_in_spans(missing)} did not come to {waited}"
    return Apart(kinds.TIMEOUT.name, text, missing[0] if len(missing) == 1 else None)


class _Part(NamedTuple):
    """Ranks that made the same call."""

    ranks: Sequence[int]
    call: str
    form: str
    """Type and shape of what it was called with; empty where that is not known."""


def _parts(members: Mapping[int, Member], stood: Mapping[int, _Call], calls: Sequence[_Call]) -> list[_Part]:
    """Return who made which call, by place or, where that is one for all, by what it was called with; fewest first."""
    newest = {rank: last for rank, call in stood.items() if (last := _newest(members[rank], call.name)) is not None}
    if len(calls) > 1 or len({each.form for each in newest.values()}) < 2:
        by_call = {call: [rank for rank, each in stood.items() if each == call] for call in calls}
        forms = {call: {newest[rank].form for rank in ranks if rank in newest} for call, ranks in by_call.items()}
        only = {call: next(iter(each)) if len(each) == 1 else "" for call, each in forms.items()}
        return [_Part(ranks, call.text(only[call]), only[call]) for call, ranks in by_call.items()]
    # A rank that gloo has ended, because more came than it expected, leaves no record: its own was not the largest.
    smallest = min(newest.values(), key=lambda each: each.bytes).form
    by_form: dict[str, list[int]] = {}
    for rank in stood:
        by_form.setdefault(newest[rank].form if rank in newest else smallest, []).append(rank)
    return sorted((_Part(ranks, "", form) for form, ranks in by_form.items()), key=lambda each: len(each.ranks))


def _odd_by_segments(
    members: Mapping[int, Member], stood: Mapping[int, _Call], victim: int, came: int, expected: int
) -> int | None:
    """Return the rank with another size where torchrun has ended it before it could tell, None where that is not known.

    Gloo's ring cuts an all-reduce into two segments for each rank.  One that came, or was expected, as long as those of
    a size that is known shows on which side of the connection that size was.
    """
    known = [last for rank, call in stood.items() if (last := _newest(members[rank], call.name)) is not None]
    missing = [rank for rank in members if rank not in stood]
    if len(members) < 3 or len({each.form for each in known}) != 1 or known[0].op != "all_reduce":
        return None
    elements = math.prod(int(each) for each in re.findall(r"\d+", known[0].form.partition("[")[2]))
    segment = known[0].bytes // max(1, elements) * -(-elements // (2 * len(members)))
    if segment == expected and len(missing) == 1:
        return missing[0]
    return victim if segment == came and victim in stood else None


def _newest(member: Member, name: str) -> PastCall | None:
    calls = None if member.ended is None else member.ended.calls
    return next((each for each in reversed(calls.recent if calls else ()) if each.op == name and each.form), None)


def _is_ahead(members: Mapping[int, Member], rank: int) -> bool:
    calls = {each.rank: each.ended.calls for each in members.values() if each.ended is not None and each.ended.calls}
    own = calls.get(rank)
    same = {other: each for other, each in calls.items() if own is not None and each.group == own.group}
    found = None if own is None else difference(own.group, same, [own.calls])
    return found is not None and found.is_ahead and found.odd == {rank}
