"""How many steps a rank records, one in so many, and how much memory its records may take.

Usually the run's observer chooses the number from the time of a step and the cost of a record; each rank itself does
until then, and where its steps become far longer; the environment can fix it.  Soon it is the same on all ranks.  This
module imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "DDPTOP_RECORD_EVERY"
"""Environment variable that fixes the number for all ranks."""
MOST: Final = 64
"""At least one step in so many is recorded."""
POSSIBLE: Final = tuple(1 << power for power in range(MOST.bit_length()))
"""Powers of two, so that ranks with different numbers still have the records of some steps in common."""
THREAD: Final = 0.01
"""Part of a step that the hooks may take of the training thread."""
ALL: Final = 0.02
"""Part of a core that hooks and the agent's own thread may take together."""
_AT_LEAST: Final = 0.25
"""Part of the cost of counting that records may add, whatever the budget is."""
APART_NS: Final = 80_000_000
"""On average no more time than this from record to record, or a verdict takes too long: it needs eight blocks of at
least five records (`judge.blocks`), and these take four seconds where records are 100 ms apart, as they are
once a slow rank makes each step a quarter longer."""
EVIDENCE: Final = 0.005
"""Part of a step on the training thread that records may add for that, and twice as much together with the agent's
thread, whatever the budget is."""
SPARE: Final = 0.7
"""Part of the budget that records may take where their number grows, so that it need not shrink again at once."""
_TOO_FAR_APART: Final = 2
"""Where records are so many times `APART_NS` apart, they become more at once: a verdict waits for them."""
_USUAL: Final = 0.35
"""The cost of a counted step, as part of a recorded one, until one was measured."""
MEMORY_VARIABLE: Final = "DDPTOP_RECORDS_MIB"
"""Environment variable with the memory of each rank for its newest records, in MiB."""
MEMORY_MIB: Final = 16
"""The memory where the environment does not say it."""
MOST_MIB: Final = 65_536


def parse(text: str) -> int:
    """Return what `8` means: one step in 8 is recorded, 1: every step.

    Raises:
        ValueError: it means nothing; says what would.
    """
    number = text.strip()
    is_number = number.isascii() and number.isdecimal() and len(number) <= len(str(MOST))
    if not is_number or int(number) not in POSSIBLE:
        raise ValueError(f"one of {', '.join(map(str, POSSIBLE))}: one step in so many is recorded")
    return int(number)


def from_environment(environment: Mapping[str, str]) -> int | None:
    """Return the number that an environment fixes, None where it does not; raises ValueError where that is unclear."""
    text = environment.get(VARIABLE, "")
    return parse(text) if text.strip() else None


def needed(step_ns: float, recorded_ns: float, counted_ns: float | None, record_ns: float, part: float = 1.0) -> int:
    """Return the least number of steps of which one can be recorded within the budget; `MOST` where none can.

    Where to count the steps takes as much as the budget, records may add a quarter of that: to record still less would
    save next to nothing.  Where records would then be more than `APART_NS` apart, they may add `EVIDENCE`, and come as
    near to `APART_NS` as that pays for.

    Args:
        step_ns: the time of a step.
        recorded_ns: CPU time of the training thread in a recorded step.
        counted_ns: the same in a counted one; None where none was measured yet.
        record_ns: CPU time of the agent's thread for a record.
        part: the part of the budget and of `EVIDENCE` that may be used; records may be `APART_NS / part` apart.
    """
    counted = _USUAL * recorded_ns if counted_ns is None else counted_ns
    more = max(0.0, recorded_ns - counted)

    def least(on_thread: float, on_all: float) -> int:
        kept = (each for each in POSSIBLE if counted + more / each <= on_thread)
        return next((each for each in kept if counted + (more + record_ns) / each <= on_all), MOST)

    in_budget = least(*(max(part * share * step_ns, (1 + part * _AT_LEAST) * counted) for share in (THREAD, ALL)))
    for_evidence = least(counted + part * EVIDENCE * step_ns, counted + 2 * part * EVIDENCE * step_ns)
    near_enough = max(each for each in POSSIBLE if each == 1 or part * each * step_ns <= APART_NS)
    return min(in_budget, max(for_evidence, near_enough))


def are_too_rare(every: int, step_ns: float) -> bool:
    """Say whether the records of one step in so many, of this length, are so far apart that more are wanted at once."""
    return every * step_ns >= _TOO_FAR_APART * APART_NS


def memory_bytes(environment: Mapping[str, str]) -> int:
    """Return the memory for a rank's records; raises ValueError where the environment has a number that cannot be."""
    number = environment.get(MEMORY_VARIABLE, "").strip() or str(MEMORY_MIB)
    is_number = number.isascii() and number.isdecimal() and len(number) <= len(str(MOST_MIB))
    if not is_number or not 1 <= int(number) <= MOST_MIB:
        raise ValueError(f"a number of MiB from 1 to {MOST_MIB:,}")
    return int(number) << 20
