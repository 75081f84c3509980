"""The kernel's log, where this user may read it: what it says of the kill of a process, or of the error of its GPU."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from ddptop.agent.text import clean_line

LOG: Final = Path("/dev/kmsg")
_MOST_RECORDS: Final = 20_000
"""Records that are read at most."""
_LONGEST: Final = 160
RECENT_S: Final = 120.0
"""An error of a GPU that names no process has to do with the end of one if it is no older than this."""


def killed(pid: int, log: Path = LOG) -> str:
    """Return the newest line on a process that was killed for memory; empty where there is none."""
    return _newest(log, re.compile(rf"[Kk]ill(?:ed)? process {pid}\b"))


def device_error(pid: int, now_s: float, log: Path = LOG) -> str:
    """Return the newest line of NVIDIA's driver (Xid) on a process, or a recent one that names none; empty without any.

    Args:
        pid: its number, which in a container the kernel may not know.
        now_s: the time since the machine's start, which counts suspended time or not: the log does not.
        log: where the kernel writes.
    """
    own = _newest(log, re.compile(rf"NVRM: Xid \(.{{1,80}}\): \d{{1,4}}, pid='?{pid}\b"))
    return own or _newest(log, re.compile(r"NVRM: Xid \(.{1,80}\): \d{1,4},(?! pid='?\d)"), now_s - RECENT_S)


def _newest(log: Path, wanted: re.Pattern[str], since_s: float = 0.0) -> str:
    found = ""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        for _ in range(_MOST_RECORDS):
            try:
                record = os.read(descriptor, 8192)
            except BrokenPipeError:
                # Older records were overwritten while these were read.
                continue
            if not record:
                break
            head, _, text = record.decode(errors="replace").partition(";")
            line = (text or head).partition("\n")[0]
            if wanted.search(line) and _seconds(head) >= since_s:
                found = clean_line(line, _LONGEST)
    except OSError:
        return found  # its end, or a kernel that does not let this user read it
    finally:
        os.close(descriptor)
    return found


def _seconds(head: str) -> float:
    """Return the time of a record, `level,number,microseconds,flags`; 0 where it has none."""
    parts = head.split(",")
    return int(parts[2]) / 1e6 if len(parts) > 2 and parts[2].isdecimal() and len(parts[2]) < 20 else 0.0
