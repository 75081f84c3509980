"""The cause of memory that grows, by a census before and another one behind some steps. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from ddptop.agent.observer.judge.intervals import Reason
from ddptop.agent.text import plural, size
from ddptop.agent.wire import LEAST, LEAST_OBJECTS, MemoryUse, ObjectKind, Resident, Verdict

NOISE: Final = 8 << 20
"""Bytes by which resident memory may grow and nobody is to blame, besides those that were freed and that the C library
keeps: a census takes some itself for a moment."""
NOISE_STEP: Final = 256 << 10
"""The same for each step."""
NOISE_HEAP: Final = 1 << 20
"""The same of the C library's heap, which does not count what was freed."""
NOISE_HEAP_STEP: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Cause(Reason):
    """The cause, whose text begins with the line of code where there is one."""

    line: str = ""
    """`train.py:52`."""
    grew: int = field(default=0, compare=False)
    """Bytes by which that memory grew; a verdict does not have them."""

    def added_to(self, finding: Verdict) -> Verdict:
        """Return the finding with its cause."""
        return msgspec.structs.replace(finding, text=f"{finding.text} · {self.text}", line=self.line, cause=self.text)


def cause_of(use: MemoryUse) -> Cause | None:
    """Return the cause of the growth between two censuses; None where nothing grew."""
    steps = use.last - use.first + 1
    found = _grown(use, steps)
    explained = max(0, use.tensor_grown) + max(0, use.object_grown)
    what, grew = _outside(use.resident, explained, steps) if use.is_whole else ("", 0)
    if not what or (found is not None and found.grown_bytes > grew - explained):
        return None if found is None else Cause(_said(found, steps), found.made, found.grown_bytes)
    if found is not None and found.graphs:
        # What autograd keeps is in no tensor that Python sees.
        return Cause(f"{_said(found, steps)}: {what} grew by {size(grew)}", found.made, grew)
    return Cause(
        f"not Python: {what} grew by {size(grew)} in {plural(steps, 'step')}, "
        f"tensors and Python objects by {size(explained)}",
        grew=grew,
    )


def _outside(resident: Resident | None, explained: int, steps: int) -> tuple[str, int]:
    """Return what grew by more than Python explains, in words, and by how much; empty where nothing did."""
    if resident is None:
        return "", 0
    if resident.heap_grown - explained >= max(NOISE_HEAP, steps * NOISE_HEAP_STEP):
        return "the C heap", resident.heap_grown
    anonymous = resident.anonymous_grown - max(0, resident.heap_kept_grown)
    if anonymous - explained >= max(NOISE, steps * NOISE_STEP):
        return "anonymous memory", anonymous
    return "", 0


def sentence(use: MemoryUse) -> str:
    """Return what grew between two censuses, or that nothing did, as a line."""
    found = cause_of(use)
    if found is not None:
        return found.text
    steps = plural(use.last - use.first + 1, "step")
    return f"nothing grew in {steps}" if use.is_whole else f"nothing is known to have grown in {steps}"


def _grown(use: MemoryUse, steps: int) -> ObjectKind | None:
    """Return the kind that grew most: of Python objects only where no tensors and arrays did.

    A tensor of a few bytes in each step counts where it has its graph, which takes more.
    """
    things = [each for each in use.kinds if each.kind != "object" and each.grown > 0]
    largest = max(things, key=lambda each: each.grown_bytes, default=None)
    if largest is not None and largest.grown_bytes >= LEAST * steps:
        return largest
    objects = [each for each in use.kinds if each.kind == "object" and each.grown_bytes >= LEAST_OBJECTS * steps]
    graphs = [each for each in things if each.graphs and each.grown >= steps]
    return max(objects or graphs, key=lambda each: each.grown_bytes, default=None)


def _said(kind: ObjectKind, steps: int) -> str:
    """Return `train.py:52 made 3 more float32[64, 32, 256] in 3 steps (6 MiB), held by ...`."""
    number = f"{kind.grown:,} more {kind.name}" if kind.grown > 0 else f"a larger {kind.name}"
    where = f"{kind.made} made " if kind.made else ""
    held = f", held by {kind.holder}" if kind.holder else ""
    graph = ", with its graph" if kind.graphs == 1 else ", each with its graph" if kind.graphs else ""
    return f"{where}{number} in {plural(steps, 'step')} ({size(kind.grown_bytes)}){held}{graph}"
