"""A standstill: time without a step, of a rank or of a run. One idea in four degrees, with all of its seconds. Pure.

looked at  for longer than two usual steps: the ranks are asked where they stand, which costs the training nothing
stands     for so many usual steps that the numbers of the last ones say nothing of now; a run that is found to work,
           or to be in no collective, is said to stand and nobody is accused
stalled    the state of a rank: as long as its user wants to wait (the setting `thresholds.stalled_s`), at least
hang       what was seen at the ranks leaves no other explanation; see `hang`

An evaluation or a save is a standstill, too: the first three are facts and no accusations.
"""

from __future__ import annotations

from typing import Final

SHORT_S: Final = 2.0
"""A rank is heard once a second: no less than this without a step, a heartbeat or a sign of work says anything."""
BEHIND_S: Final = 3.0
"""The same of one rank while others make steps."""
ENDED_S: Final = 5.0
"""A rank that is gone is the cause of what follows after this: until then the end of the run may follow, as it does
where a rank has failed. The same after the end of a script whose process does not end."""
NEWS_S: Final = 10.0
"""A standstill is news from here on, unless steps take as long or the run has stood for longer before."""
POLLS_S: Final = 15.0
"""A rank whose main thread sleeps is not at work because other threads compute, or because frames of libraries change:
it may look for something again and again."""
UNSEEN_S: Final = 20.0
"""What cannot be seen may take so long: the imports of a start, or a collective that all ranks have entered."""
BUSY_S: Final = 30.0
"""A machine under load may keep a thread that is ready to run, or waits for a disk, for so long; or a whole start."""
RENDEZVOUS_S: Final = 60.0
"""A rendezvous in which all ranks are may take so long."""
WORK_S: Final = 75.0
"""A save or an evaluation may stand in one line for so long without using the CPU, wait for a disk, or be a loop of the
user's."""
LONGEST_S: Final = 120.0
"""Nothing that lasts longer is ordinary: one call of a library, work that comes in pieces, ranks that nobody can see,
and what is learned from a run that went on by itself."""

_STEPS: Final = 10
"""Usual steps for which nobody stands whose steps are slow."""
_QUICK_STEPS: Final = 100
"""The same of quick ones."""


def looked_at_s(step_s: float | None, *, has_stepped: bool) -> float:
    """Return the seconds without a step after which the ranks of a run are asked where they stand.

    Args:
        step_s: seconds of a usual step, None where that is not known.
        has_stepped: whether there was any.
    """
    if not has_stepped:
        return UNSEEN_S
    return NEWS_S if step_s is None else SHORT_S + 2 * step_s


def bearable_s(step_s: float | None, longest_s: float) -> float:
    """Return the seconds without a step that are no news of a run, which has stood for `longest_s` and gone on."""
    return max(NEWS_S, NEWS_S / 2 + 3 * (step_s or 0.0), 1.5 * longest_s)


def stands(age_s: float | None, step_ms: float | None) -> bool:
    """Say whether a run or a rank stands, so that the time of its last steps says nothing of now.

    Args:
        age_s: seconds since the newest step, None before the first.
        step_ms: milliseconds that a step usually takes, None where that is not known.
    """
    if age_s is None or step_ms is None or age_s <= SHORT_S:
        return False
    step_s = step_ms / 1e3
    return age_s > min(_QUICK_STEPS * step_s, max(NEWS_S, _STEPS * step_s))


def is_stalled(age_s: float, step_s: float, stalled_s: float) -> bool:
    """Say whether a rank is stalled, whose user waits for `stalled_s`."""
    return age_s > max(stalled_s, _STEPS * step_s)
