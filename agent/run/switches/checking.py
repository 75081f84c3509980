"""How often the parameters of the ranks are compared: the grammar of `--check-parameters`.

The command line checks the text with it, and the rank reads its environment with it.  This module imports only the
standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

VARIABLE: Final = "DDPTOP_CHECK_PARAMETERS"
"""Environment variable that carries the text to the ranks."""
MOST_STEPS: Final = 10**9
_BUFFERS: Final = "buffers="
_GRAMMAR: Final = (
    f"a number of steps from 1 to {MOST_STEPS:,}, as well with the buffers to compare: 100,buffers=*.running_*"
)


class Checking(NamedTuple):
    """The parameters that are compared, and the steps from one comparison to the next."""

    every: int = 0
    """Steps of the parameters from one comparison to the next. 0: only on request."""
    buffers: tuple[str, ...] = ()
    """Patterns of the names of buffers that are compared with the parameters, as a shell has them."""


def parse(text: str) -> Checking:
    """Return what `100` or `100,buffers=*.running_*[,buffers=…]` means.

    Raises:
        ValueError: it means nothing; says what would.
    """
    number, *rest = (part.strip() for part in text.split(","))
    patterns = tuple(part.removeprefix(_BUFFERS) for part in rest)
    is_number = number.isascii() and number.isdecimal() and len(number) <= len(str(MOST_STEPS))
    names_buffers = all(patterns) and all(part.startswith(_BUFFERS) for part in rest)
    if not (is_number and names_buffers and 1 <= int(number) <= MOST_STEPS):
        raise ValueError(_GRAMMAR)
    return Checking(int(number), patterns)


def from_environment(environment: Mapping[str, str]) -> Checking:
    """Return what an environment asks for; raises ValueError where that is not clear."""
    text = environment.get(VARIABLE, "")
    return parse(text) if text.strip() else Checking()
