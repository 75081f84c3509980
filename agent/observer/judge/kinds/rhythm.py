"""How often a delay comes that does not come in every step. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptop.agent.observer.judge.evidence.blocks import OWN_PHASES, Rows
from ddptop.agent.observer.judge.evidence.median import median, middle

LEAST: Final = 4
"""Times that it has to have come."""
REGULAR: Final = 0.8
"""Share of the distances that have to be the same."""
ACCOUNTS: Final = 0.6
"""Part of the whole cost that has to fall into these steps."""
ODD: Final = 2
"""So many longer stops for other reasons do not matter."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """A delay that comes once in so many steps."""

    every: int
    ms: float
    """Each time."""
    first_step: int
    """The first time that is known."""


def rhythm_of(rows: Iterable[Rows], column: int, phase: str, since: int) -> Rhythm | None:
    """Return the rhythm in which a rank takes longer than the others in a phase; None where there is none.

    Args:
        rows: The newest steps, oldest first.
        column: The place of the rank in their tables.
        phase: One of `OWN_PHASES`.
        since: The step in which the delay began.
    """
    known = [each for each in rows if each.steps[-1] >= since]
    if not known or known[0].table.shape[1] < 2:
        return None
    at = OWN_PHASES.index(phase)
    spent = np.concatenate([each.table[:, :, at] for each in known])
    steps = np.concatenate([each.steps for each in known])
    more = spent[:, column] - median(np.delete(spent, column, axis=1), 1)
    if len(more) <= LEAST + ODD or int(np.diff(steps).min()) > 1:
        # Of steps that are not recorded one after the other, the rhythm of a delay is not known.
        return None
    level = float(np.partition(more, -ODD - 1)[-ODD - 1]) / 2
    late = np.flatnonzero(more > max(level, 0.0))
    if len(late) < LEAST or more[late].sum() < ACCOUNTS * more.sum():
        return None
    distances = np.diff(steps[late])
    every = int(middle(distances))
    if every < 2 or float((distances == every).mean()) < REGULAR:
        return None
    return Rhythm(every, middle(more[late]), int(steps[late[0]]))
