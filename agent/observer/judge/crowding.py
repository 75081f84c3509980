"""Ranks whose threads are more than the cores of their host. Pure, without NumPy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ddptop.agent.text import plural
from ddptop.agent.wire import Threads

_CLAIMED: Final = re.compile(r", [\d,]+ cores? for [\d,]+ ranks?, (?:(\d+) threads? each|OMP_NUM_THREADS=(\S+) .*)$")
"""What `launch` says of threads before there are any."""


def crowding(hosts: Iterable[tuple[str, Threads]]) -> str:
    """Return `8 threads a rank for 2 ranks on 2 cores` of the first cores that are crowded, empty where none are.

    Ranks of one thread each are no crowd: how many there are somebody has chosen.

    Args:
        hosts: of each rank that has told, its host and its threads.
    """
    by_cores: dict[tuple[str, str], list[Threads]] = {}
    for host, threads in hosts:
        by_cores.setdefault((host, threads.on), []).append(threads)
    for ranks in by_cores.values():
        counts, cores = [each.within for each in ranks], max(each.cores for each in ranks)
        if max(counts) > 1 and sum(counts) > cores:
            return f"{_each(ranks)} for {plural(len(ranks), 'rank')} on {_cores(cores)}"
    return ""


def _cores(cores: float) -> str:
    return f"{cores:.3g} core{'' if cores == 1 else 's'}"


def _each(ranks: list[Threads]) -> str:
    least, most = min(each.within for each in ranks), max(each.within for each in ranks)
    said = [f"{plural(most, 'thread')} a rank" if least == most else f"{least} to {most} threads a rank"]
    if workers := max(each.children for each in ranks):
        said.append(f"{workers:,} child process{'' if workers == 1 else 'es'}")
    if pins := max(each.pins for each in ranks):
        said.append(f"{plural(pins, 'thread')} that {'pins' if pins == 1 else 'pin'} memory")
    return " and ".join(filter(None, (", ".join(said[:-1]), said[-1])))


def placed(placement: str, hosts: Iterable[tuple[str, Threads]]) -> str:
    """Return the line on where a run is, with the threads that its ranks have where those are others than it claims."""
    told = list(hosts)
    counts = {str(threads.within) for _, threads in told}
    claimed = _CLAIMED.search(placement)
    crowd = crowding(told)
    if (
        not counts
        or (claimed is None and not crowd)
        or (claimed and counts == {claimed[1] or claimed[2]} and not crowd)
    ):
        return placement
    bare = placement if claimed is None else placement[: claimed.start()]
    said = crowd or f"{_each([threads for _, threads in told])} on {_cores(told[0][1].cores)}"
    by = ", set by the script" if claimed and counts != {claimed[1] or claimed[2]} else ""
    return f"{bare}, {said}{by}" if bare else said
