"""The present generation (start of the group) by what the ranks report.

A rank that reports something false must not hide the others from an observer.  Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ddptop.agent.run.identity import Process
    from ddptop.agent.run.records import Member, Run

_APART_S: Final = 1.0
"""Seconds by which all processes of a start are younger than those of an earlier one, which has ended before."""


def most(run: Run, known: int) -> int:
    """Return the newest generation that a rank of this run may claim.

    Args:
        run: the run's record.
        known: the newest generation known so far.
    """
    if run.launched and run.leader == "torchrun" and not run.spans_hosts:
        # torchrun counts its restarts up to its option `--max-restarts`; of several hosts it also starts the group
        # again, uncounted, when another of them has failed, comes or goes.
        return run.max_restarts
    return known + 1


def of_start(
    counted: int, rank: int, local_rank: int, known: Iterable[Member], lives: Callable[[Process], bool]
) -> int:
    """Return the generation of a process that torchrun has just started.

    Each torchrun counts only the failures that it has noticed first, so its count may differ between hosts that have
    started their ranks equally often. These starts are counted here: each has one process for a local rank.

    Args:
        counted: the restarts that torchrun has counted.
        rank: of the process.
        local_rank: of the process; where the group has lost or gained hosts, its rank may be another than before.
        known: the records of the ranks of this host, of all starts.
        lives: says whether a process lives. All of an earlier start have ended before the next begins.
    """
    known = list(known)
    living = [(member.generation, True) for member in known if lives(member.process)]
    if living:
        return max(counted, present(living))
    before = [member.generation + 1 for member in known if rank == member.rank or local_rank == member.local_rank]
    return max([counted, *before])


def present(
    claims: Sequence[tuple[int, bool]], *, bounded: bool = False, begun: Mapping[int, Sequence[Process]] | None = None
) -> int:
    """Return the present generation by the claims of the ranks: for each its generation, and whether its process lives.

    The ranks of a generation are all gone before those of the next begin. So the claim of most living ranks wins, and
    the lower one of two equally frequent claims. Where no rank lives, the result is the newest generation that follows
    the others without a gap, or simply the newest where the claims are already `bounded` by what the run allows. A gap
    is passed where all processes behind it are younger than those before it: a host that has other ranks in each start
    replaces only some of the records.

    Args:
        claims: of the ranks.
        bounded: no claim is larger than what the run allows.
        begun: by generation, the processes of its ranks.
    """
    living = Counter(generation for generation, alive in claims if alive)
    if living:
        return min(living, key=lambda generation: (-living[generation], generation))
    if bounded:
        return max((generation for generation, _ in claims), default=0)
    found = sorted({generation for generation, _ in claims})
    newest = min(found, default=0)
    for generation in found:
        if generation > newest + 1 and not _follows(generation, begun or {}):
            break
        newest = generation
    return newest


def _follows(generation: int, begun: Mapping[int, Sequence[Process]]) -> bool:
    """Say whether the processes of a generation are younger than those of all before it, as far as that is known."""
    own = begun.get(generation, ())
    before = [process for earlier, processes in begun.items() if earlier < generation for process in processes]
    if not own or not before or len({process.boot for process in (*own, *before)}) > 1:
        return False
    return min(each.started for each in own) > max(each.started for each in before) + _APART_S
