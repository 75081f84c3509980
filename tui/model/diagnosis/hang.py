"""The verdict of a hang for people: its urgency, and the time that its collectives may still wait. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.agent.client.frame import Frame
from ddptop.agent.wire.frames import ENDED

if TYPE_CHECKING:
    from ddptop.agent.wire import Verdict


def verdict_of(frame: Frame) -> Verdict | None:
    """Return the verdict of a run that makes no steps, a hang or not; None where there is none, or the run is over."""
    return None if frame.state in ENDED else last(frame)


def last(frame: Frame) -> Verdict | None:
    """Return the same also of a run that ended while that went on."""
    return next((verdict for verdict in frame.verdicts if verdict.hang is not None), None)


def urgent(frame: Frame) -> Verdict | None:
    """Return the verdict of a run that hangs; None where it does not, or is over."""
    verdict = verdict_of(frame)
    return verdict if verdict is not None and verdict.is_hang else None


def advice(frame: Frame) -> str:
    """Return the commands that help with the present hang."""
    stacks, kill = f"ddptop stacks {frame.run} shows where each rank stands", f"ddptop kill {frame.run} ends it"
    return " · ".join(filter(None, (remedy(frame), stacks, kill)))


def recorded_since(frame: Frame) -> float | None:
    """Return the begin of the hang in seconds since the epoch: from then on the record may have the ranks' stacks.

    Of an ended run that is any time; of one that does not hang none, because an earlier hang is over.
    """
    if frame.state in ENDED:
        return 0.0
    verdict = urgent(frame)
    return None if verdict is None else verdict.since_at_ns / 1e9


def culprits(frame: Frame) -> frozenset[int]:
    """Return the ranks that are the cause of the present hang, or of that in which the run ended."""
    verdict = last(frame)
    return frozenset() if verdict is None else accused(verdict)


def accused(verdict: Verdict) -> frozenset[int]:
    """Return the ranks that a verdict says to be the cause of a hang; none where it is of no hang."""
    if verdict.hang is None or not verdict.is_hang:
        return frozenset()
    return frozenset(verdict.hang.ranks) or frozenset(() if verdict.rank is None else (verdict.rank,))


def remedy(frame: Frame) -> str:
    """Return the command that helps with the present hang, or shows more of it; empty where none is known.

    `kill -CONT 4712 lets it go on, unless a debugger holds it`.
    """
    verdict = verdict_of(frame)
    if verdict is None or verdict.hang is None:
        return ""
    ranks = culprits(frame)
    pids = [str(rank.pid) for rank in frame.ranks if rank.rank in ranks and rank.pid]
    if pids and verdict.hang.kind == "stopped":
        held = "it" if len(pids) == 1 else "them"
        return f"kill -CONT {' '.join(pids)} lets {held} go on, unless a debugger holds {held}"
    if pids and verdict.hang.kind == "data":
        return f"py-spy dump --subprocesses --pid {pids[0]} shows its data workers"
    return ""


def headline(frame: Frame) -> str:
    """Return the hang in two or three words, in capitals: `RANK 1 HANGS`."""
    ranks = culprits(frame)
    if len(ranks) == 1:
        return f"RANK {min(ranks)} HANGS"
    return f"{len(ranks):,} RANKS HANG" if ranks else "HANGS"


def countdown(frame: Frame, verdict: Verdict) -> str:
    """Return `gloo's timeout in 1,742 s`, `gloo's timeout of group 1 in 6 s`; empty where no timeout is known."""
    if verdict.hang is None or (at_ns := verdict.hang.timeout_at_ns) is None:
        return ""
    whose = f"{frame.backend}'s timeout" if frame.backend else "the timeout of the collective"
    whose += f" of {verdict.hang.timeout_of}" if verdict.hang.timeout_of else ""
    left = at_ns / 1e9 - frame.at
    return f"{whose} in {left:,.0f} s" if left >= 1 else f"{whose} is over"
