"""Where the ranks stood when the run failed: the line of a crash, and the collectives in which they parted.

A collective in which ranks do not agree kills whoever notices it first, in the words of gloo or NCCL; the stacks that
the ranks left behind (tracebacks, crash dumps) show which rank called what.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from ddptop.agent.observer.end import kinds, traces
from ddptop.agent.run.files import tail
from ddptop.agent.run.records import Member
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.text import clean_line, ranks_in_spans

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

    @property
    def text(self) -> str:
        return f"{self.name} ({self.place})" if self.place else self.name


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
        output = output_of(directory.rank_log(first), 0 if member is None else member.log_begin) or torchrun_log
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
    log = directory.rank_log(member.rank)
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
            dump = traces.crash(output_of(directory.rank_log(rank), member.log_begin))
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
        text += f"{ranks_in_spans(stood)} still stood in {next(iter(stood.values())).text}"
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
    by_call = {call: [rank for rank, each in stood.items() if each == call] for call in calls}
    if len(calls) > 1:
        least, most = calls[0], calls[-1]
        few, many = ranks_in_spans(by_call[least]), ranks_in_spans(by_call[most])
        text = f"{few} called {least.text} where {many} called {most.text}"
        one = len(by_call[least]) == 1 < len(by_call[most])
        return Apart(kinds.MISMATCH.name, text, by_call[least][0] if one else None)
    call = calls[0]
    if kind is kinds.MISMATCH:
        sizes = re.search(_SIZES, said)
        other = "sizes that do not match" if len(stood) > 1 else "another size than its peers"
        text = f"{ranks_in_spans(stood)} called {call.text} with {other}"
        if sizes:
            text += f": {int(sizes[1]):,} bytes came where {int(sizes[2]):,} were expected"
        return Apart(kinds.MISMATCH.name, text, None)
    missing = [rank for rank in members if rank not in stood and codes.get(rank) in (None, -signal.SIGTERM)]
    if not missing:
        return None
    waited = f"{call.text}, in which {ranks_in_spans(stood)} waited until the timeout"
    text = f"{ranks_in_spans(missing)} did not come to {waited}"
    return Apart(kinds.TIMEOUT.name, text, missing[0] if len(missing) == 1 else None)
