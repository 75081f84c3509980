"""How many steps a rank records: one in so many, the same on all ranks.

Usually the run's observer chooses the number from the time of a step and the cost of a record; the environment can fix
it.  This module imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "DDPTOP_RECORD_EVERY"
"""Environment variable that fixes the number for all ranks."""
MOST: Final = 64
"""Steps from one record to the next at most."""
POSSIBLE: Final = tuple(1 << power for power in range(MOST.bit_length()))
"""Powers of two, so that ranks with different numbers still have the records of some steps in common."""


def parse(text: str) -> int:
    """Return what `8` means: every 8th step is recorded, 1: every step.

    Raises:
        ValueError: it means nothing; says what would.
    """
    number = text.strip()
    is_number = number.isascii() and number.isdecimal() and len(number) <= len(str(MOST))
    if not is_number or int(number) not in POSSIBLE:
        raise ValueError(f"one of {', '.join(map(str, POSSIBLE))}: one step in so many is recorded")
    return int(number)


def from_environment(environment: Mapping[str, str]) -> int | None:
    """Return the number that an environment fixes, None where it does not; raises ValueError where nobody can tell."""
    text = environment.get(VARIABLE, "")
    return parse(text) if text.strip() else None
