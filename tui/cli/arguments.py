"""The command line of this process, as `ps` shows it to every user of the machine."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_BEGIN, _END = 45, 46
"""Where the addresses of the arguments stand among the fields of /proc/PID/stat that follow the name."""
_BLANK: Final = b"*"


def conceal(masks: Mapping[str, str]) -> None:
    """Write masks over words of the command line, or over their ends behind a `=`; where that cannot be, they stay.

    Linux shows of a process what stands in its memory where the arguments were put.
    """
    import ctypes

    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        begin, end = int(fields[_BEGIN]), int(fields[_END])
        area = (ctypes.c_char * (end - begin)).from_address(begin)
        content = area.raw
        for word, mask in masks.items():
            secret = word.encode("utf-8", "surrogateescape")
            # In the same room, since what follows has its place.
            content = content.replace(secret, mask.encode()[: len(secret)].ljust(len(secret), _BLANK))
        area.raw = content
