"""Which entries of a log are wanted: those of a level, and those with a text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ddptop.agent.client.logs.entries import Entry
from ddptop.agent.client.logs.lines import Level

_ERRORS: Final = (b"error", b"traceback", b"exception", b"interrupt", b"critical", b"fatal", b"terminate", b"group")
_WARNINGS: Final = (*_ERRORS, b"warn")
"""Words, one of which stands in each line of the level or above, unless its level is a letter."""
_LETTER: Final = {Level.ERROR: re.compile(rb"[EFC]\d{4} \d\d:"), Level.WARNING: re.compile(rb"[WEFC]\d{4} \d\d:")}
_ESCAPES: Final = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
_UNSEEN: Final = bytes(code for code in range(32) if code not in b"\n\t") + b"\x7f"
"""Characters of which a screen shows nothing."""
_WORD: Final = re.compile(rb"[!-~]+")


@dataclass(frozen=True)
class Wanted:
    """A level, and a text in any case; everything where there is neither."""

    level: Level | None = None
    """The least level; an entry without one is then left out."""
    text: str = ""

    def __bool__(self) -> bool:
        return self.level is not None or bool(self.text)

    @cached_property
    def folded(self) -> str:
        """The text as it is compared."""
        return self.text.lower()

    def takes(self, entry: Entry) -> bool:
        """Say whether an entry is wanted."""
        if self.level is not None and (entry.level is None or entry.level < self.level):
            return False
        return not self.text or any(self.folded in line.text.lower() for line in entry.lines)

    @cached_property
    def _word(self) -> bytes:
        """The longest part of the text that any writing of it has in its bytes; empty where there is none."""
        return max(_WORD.findall(self.folded.encode()), key=len, default=b"")

    def may_be_in(self, data: bytes) -> bool:
        """Say whether a wanted line may be in a part of a log; much faster than to read its lines.

        A word with invisible characters inside, other than colors and controls, is not found by this.
        """
        if not (self._word or self.level in _LETTER):
            return True
        if b"\x1b" in data:
            data = _ESCAPES.sub(b"", data)
        lowered = data.translate(None, _UNSEEN).lower()
        if self._word and self._word not in lowered:
            return False
        if self.level not in _LETTER:
            return True
        words = _ERRORS if self.level is Level.ERROR else _WARNINGS
        return any(word in lowered for word in words) or _LETTER[self.level].search(data) is not None


ALL: Final = Wanted()


def places(text: str, folded: str) -> list[tuple[int, int]]:
    """Return where a folded text stands in another, as begin and end, none overlapping."""
    lowered = text.lower()
    if not folded or len(lowered) != len(text):
        # Few letters become two in lower case: the places would not be those of the text.
        return []
    return [found.span() for found in re.finditer(re.escape(folded), lowered)]
