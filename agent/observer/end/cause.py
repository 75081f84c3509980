"""How a run ended and what the first cause was: pure, from what the ranks and torchrun left behind.

The last traceback of a group is rarely the reason: when one rank dies, its peers fail a
moment later with a lost connection, and torchrun ends the rest.  Everything read here was
written by somebody else and may hold anything; what goes out is one clean line.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ddptop.agent.run.rundir import Member, own_word
from ddptop.agent.text import clean_line
from ddptop.agent.wire import MOST_RANKS

_LOST_PEER = re.compile(
    r"connection (was )?(likely )?(closed|reset|refused)|closed by peer|broken pipe|\brecv|socket closed"
    r"|remote (process|server|error)|ncclRemoteError|aborted due to|heartbeat",
    re.IGNORECASE,
)
"""Errors that say that somebody else has gone, as gloo, NCCL and TCPStore put it."""

_FAILURE = re.compile(r"\brank\s*:\s*(\d{1,5}) \(local_rank: \d{1,5}\)\s+exitcode\s*:\s*(-?\d{1,9}) \(pid: (\d{1,9})\)")
"""An entry of torchrun's failure summary."""
_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,9})\) local_rank: (\d{1,5}) \(pid: (\d{1,9})\)")
"""torchrun's line on the first rank that failed; before it starts the group anew there is no summary."""
_TOLD = re.compile(r"SignalException: Process \d+ got signal: (?:Signals\.)?(\w{1,20})\b")
"""torchrun's last word after a signal of its own; Python 3.10 spells the name, later ones the number."""

_MEANING: Final = {
    signal.SIGKILL: "out of memory, or kill -9",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "native code gave up; its log says why",
    signal.SIGBUS: "often a full /dev/shm",
    signal.SIGTERM: "somebody ended it",
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """How a run ended."""

    state: str
    """`finished`, `stopped`, `failed` or `lost`."""
    exit_code: int | None
    cause: str | None = None
    rank: int | None = None
    warning: str | None = None
    """What went wrong without making the run a failure."""


@dataclass(frozen=True, slots=True)
class _Suspect:
    rank: int
    at_ns: float
    secondary: bool
    """True for what looks like the consequence of another rank's death."""
    text: str
    code: int | None = None
    """Its exit code, 128+n for a signal; torchrun's own is 1 whatever happened."""


def judge(
    world: int,
    members: Mapping[int, Member],
    exit_code: int | None,
    torchrun_log: str = "",
    died_at_ns: Mapping[int, int] | None = None,
    leader: str = "torchrun",
) -> Judgement:
    """Return how a run ended.

    Args:
        world: number of ranks that there should be.
        members: what the ranks said of themselves.
        exit_code: torchrun's, negative for a signal; None where nobody waited for it.
        torchrun_log: the end of what torchrun printed.
        died_at_ns: when each rank was seen dead, where somebody watched.
        leader: what the process that starts the ranks is called.
    """
    members = {rank: own_word(member) for rank, member in members.items()}
    codes = _summary(torchrun_log, members)
    code = None if exit_code is None else _positive(exit_code)
    ended = [member.ended for member in members.values() if member.ended is not None]
    in_order = len(ended) == len(members) >= world and not any(end.exit_code for end in ended)
    whole = in_order and all(end.exit_code == 0 for end in ended)
    stoppers = [member.ended.stopped_by for member in members.values() if member.ended and member.ended.stopped_by]
    if stoppers and (exit_code == 0 or in_order):
        return Judgement(
            "stopped", 0, f"stopped by {clean_line(stoppers[0], 100)}", warning=_late_trouble(codes, exit_code, leader)
        )
    if exit_code == 0:
        return Judgement("finished", 0)
    if whole:
        return Judgement("finished", 0, warning=_late_trouble(codes, exit_code, leader))
    if in_order and exit_code is None:
        return Judgement("ended", None, "every rank ended by itself, with what exit code nobody has seen")
    told = _TOLD.findall(torchrun_log)
    if told and not codes:
        name = _signal_name(int(told[-1])) if told[-1].isdecimal() else told[-1]
        return Judgement("failed", code, f"{leader} was told to end by {name}")
    if suspects := _suspects(members, codes, died_at_ns or {}):
        first = min(suspects, key=lambda suspect: (suspect.secondary, suspect.at_ns, suspect.rank))
        return Judgement("failed", first.code or code or 1, first.text, first.rank)
    if exit_code is None:
        return Judgement("lost", None, "it ended with nobody watching, and not every rank left word")
    if exit_code < 0:
        return Judgement("failed", code, f"{leader} was killed by {_signal_name(-exit_code)}")
    return Judgement("failed", code, last_line(torchrun_log) or f"{leader} ended with exit code {exit_code}")


def last_line(text: str) -> str | None:
    """Return the last line that is not empty, clean."""
    lines = [line for line in map(clean_line, text.splitlines()) if line]
    return lines[-1] if lines else None


def describe_end(member: Member) -> tuple[str, str]:
    """Return text and level of the event "rank N has ended", from its own record."""
    ended = member.ended
    if ended is None:
        return f"rank {member.rank} is gone, without a word", "warning"
    if ended.exit_code is None and not ended.stopped_by:
        return f"rank {member.rank} has ended; its exit code is not known", "info"
    if not ended.exit_code:
        return f"rank {member.rank} {'stopped' if ended.stopped_by else 'finished'}", "info"
    reason = f": {clean_line(ended.error)}" if ended.error else ""
    return f"rank {member.rank} ended with exit code {ended.exit_code}{reason}", "error"


def _summary(log: str, members: Mapping[int, Member]) -> dict[int, int]:
    codes = {}
    # On one machine the local rank is the rank.
    early = [(rank, code, pid) for code, rank, pid in _FAILED.findall(log)]
    for rank, code, pid in early + _FAILURE.findall(log):
        member = members.get(int(rank))
        # A script can print such lines too; only torchrun's have the right pid.
        if int(rank) < MOST_RANKS and (member is None or member.process.pid == int(pid)):
            codes[int(rank)] = int(code)
    return codes


def _suspects(members: Mapping[int, Member], codes: Mapping[int, int], died_at_ns: Mapping[int, int]) -> list[_Suspect]:
    suspects = []
    for rank in sorted({*members, *codes}):
        member = members.get(rank)
        ended = member.ended if member else None
        died = died_at_ns.get(rank, float("inf"))
        if ended is not None and ended.exit_code:
            reason = clean_line(ended.error) if ended.error else f"ended with exit code {ended.exit_code}"
            secondary = ended.exit_code in (-signal.SIGTERM, 128 + signal.SIGTERM) or bool(_LOST_PEER.search(reason))
            text = f"rank {rank}: {reason}" if ended.error else f"rank {rank} {reason}"
            suspects.append(_Suspect(rank, ended.at_ns, secondary, text, _positive(ended.exit_code)))
        elif rank in codes and codes[rank] != 0:
            after = " at exit, after its script had finished" if ended is not None else ""
            text = f"rank {rank} {_silent(codes[rank])}{after}"
            # torchrun ends the others by TERM once one has failed.
            told = codes[rank] == -signal.SIGTERM and len(codes) > 1
            suspects.append(_Suspect(rank, died, told, text, _positive(codes[rank])))
        elif ended is None and rank in died_at_ns:
            # Where there is a summary and this rank is not in it, torchrun ended it because of the others.
            text = f"rank {rank} died without a word (a signal, or out of memory)"
            suspects.append(_Suspect(rank, died, bool(codes), text))
    return suspects


def _silent(code: int) -> str:
    if code > 0:
        return f"left with exit code {code} and without an exception"
    meaning = _MEANING.get(-code)  # type: ignore[call-overload]
    return f"was killed by {_signal_name(-code)}" + (f" ({meaning})" if meaning else "")


def _positive(code: int) -> int:
    return code if code >= 0 else 128 - code


def _late_trouble(codes: Mapping[int, int], exit_code: int | None, leader: str) -> str | None:
    if not exit_code:
        return None
    if not codes:
        who = f"{leader} {_silent(exit_code)}" if exit_code < 0 else f"{leader} ended with exit code {exit_code}"
        return f"{who}, after every rank had finished: counted as finished"
    who = ", ".join(f"rank {rank} {_silent(code)}" for rank, code in sorted(codes.items()))
    return f"{who}, after every script had finished: counted as finished"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
