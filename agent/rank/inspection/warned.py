"""What torch itself warns of, read in the log of this rank: C++ code prints past Python's warnings."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from ddptop.agent.run.files.private import open_plain
from ddptop.agent.text import clean_line

_MOST: Final = 16 << 10
"""Bytes that are read at a time; of more that came since the last look the newest."""
_MOST_TOLD: Final = 8
_LONGEST: Final = 240
_NATIVE: Final = re.compile(r"\[W\d{3,4} [^\]]{1,200}\.(?:cpp|cc|cu|h|py):\d+\](?: \[\w+\])? (?:Warning: )?(.+)")
"""A line of torch's own log, such as `[rank0]:[W1128 15:53:31.412 reducer.cpp:1457] Warning: …`."""
_PYTHON: Final = re.compile(r"(?<!\S)(\S+)\.py:\d+: \w*Warning: (.+)")
"""Only a whole word is tried as the file: a long line without blanks would take its length squared, with the GIL."""
_SOURCE: Final = re.compile(r" ?\((?:Triggered internally at|function \S).*$")
"""The place in torch's sources at the end of a warning."""


class Warned:
    """Reads the log of this rank on, and finds each warning of torch once."""

    def __init__(self, log: str | None, begin: int) -> None:
        """Prepare; `log` is the file from byte `begin` on, None where the output goes elsewhere."""
        self._log = None if log is None else Path(log)
        self._at = begin
        self._told: set[str] = set()

    def turn(self) -> list[str]:
        """Return the warnings that have come since the last call.

        Raises:
            OSError: the log cannot be read; it is not tried again.
        """
        log, self._log = self._log, None
        if log is None or len(self._told) >= _MOST_TOLD:
            return []
        with open_plain(log) as file:
            self._log, size = log, os.fstat(file.fileno()).st_size
            if size <= self._at:
                return []
            begin = max(self._at, size - _MOST)
            text = os.pread(file.fileno(), size - begin, begin)
        # A line that is being written is read again.
        whole = text[: text.rfind(b"\n") + 1]
        self._at = begin + len(whole) if whole or len(text) < _MOST else size
        fresh = [each for each in map(_warning, whole.decode(errors="replace").splitlines()) if each]
        found = [each for each in dict.fromkeys(fresh) if each not in self._told][: _MOST_TOLD - len(self._told)]
        self._told.update(found)
        return found


def _warning(line: str) -> str:
    if native := _NATIVE.search(line[:4096]):
        text = native[1]
    elif (python := _PYTHON.search(line[:4096])) and ("/torch/" in python[1] or "Triggered internally" in line):
        text = python[2]
    else:
        return ""
    return clean_line(_SOURCE.sub("", text), _LONGEST)
