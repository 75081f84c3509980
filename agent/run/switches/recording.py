"""How many steps a rank records, one in so many and the same on all ranks, and how much memory its records may take.

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
MEMORY_VARIABLE: Final = "DDPTOP_RECORDS_MIB"
"""Environment variable with the memory of each rank for its newest records, in MiB."""
MEMORY_MIB: Final = 16
"""The memory where the environment does not tell."""
MOST_MIB: Final = 65_536


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


def memory_bytes(environment: Mapping[str, str]) -> int:
    """Return the memory for a rank's records; raises ValueError where the environment has a number that cannot be."""
    number = environment.get(MEMORY_VARIABLE, "").strip() or str(MEMORY_MIB)
    is_number = number.isascii() and number.isdecimal() and len(number) <= len(str(MOST_MIB))
    if not is_number or not 1 <= int(number) <= MOST_MIB:
        raise ValueError(f"a number of MiB from 1 to {MOST_MIB:,}")
    return int(number) << 20
