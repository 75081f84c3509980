"""What is believed of what ranks say: which start of their group is the present one, and how many steps they have done.

A rank that says something false of itself is not to take the others away from whoever looks.  Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ddptop.agent.run.records import Run

_MOST_A_SECOND: Final = 100_000
"""Steps of a rank: no loop of PyTorch's, however empty, comes near it."""
_SLACK_S: Final = 60.0
"""By how much two clocks may differ, and what waits in a queue."""


def most(run: Run, known: int) -> int:
    """Return the newest generation that a rank of this run may claim to be of.

    Args:
        run: the run's record.
        known: the newest one that is known already.
    """
    if run.launched and run.leader == "torchrun":
        # torchrun counts its restarts up to the number that it was started with.
        return run.max_restarts
    return known + 1


def present(claims: Sequence[tuple[int, bool]], *, bounded: bool = False) -> int:
    """Return the present generation by the records of the ranks: of each its own, and whether its process lives.

    The ranks of a generation are all gone before those of the next begin, so that of those that live the most decide,
    and of two camps of one size the one that claims less.  Where none lives, the newest generation that follows the
    others without a gap, or simply the newest where the claims are `bounded` by what the run allows.
    """
    living = Counter(generation for generation, alive in claims if alive)
    if living:
        return min(living, key=lambda generation: (-living[generation], generation))
    if bounded:
        return max((generation for generation, _ in claims), default=0)
    found = sorted({generation for generation, _ in claims})
    newest = min(found, default=0)
    for generation in found:
        if generation > newest + 1:
            break
        newest = generation
    return newest


def can_reach(seq: int, seconds: float, before: int = 0) -> bool:
    """Say whether a rank that had done `before` steps can have done `seq` so many seconds later."""
    return seq <= before + (max(0.0, seconds) + _SLACK_S) * _MOST_A_SECOND
