"""Makes one trace and a summary of what the ranks of a profile have sent; they are files of the folder given."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path
from typing import Final

from ddptop.agent.record.profiles import merge, parts, summary
from ddptop.agent.run.files import private
from ddptop.agent.text import Complaint, clean

_LEAST: Final = 1 << 30
"""Bytes of memory that this process may take, however little is free."""


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m ddptop.agent.record.profiles FOLDER", file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    _bound_memory()
    try:
        _make(folder)
    except Complaint as problem:
        return _refuse(folder, str(problem))
    except OSError as error:
        return _refuse(folder, f"{error.filename or folder}: {error.strerror or error}")
    except MemoryError:
        return _refuse(folder, "not enough memory to join the traces; profile fewer steps or ranks")
    return 0


def _bound_memory() -> None:
    """Take at most half of the memory that is free: beyond that this process fails, and not the training beside it."""
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (max(_LEAST, free // 2), hard))


def _make(folder: Path) -> None:
    """Write the trace and the summary, both or neither, and remove the traces of the ranks.

    Raises:
        Complaint, OSError: the folder is as it was.
    """
    profile = parts.read(folder)
    comparison = summary.Comparison(profile)
    making = folder / f".{parts.TRACE}"
    try:
        merge.write(making, folder, profile, comparison.take)
        content = comparison.encode()
        os.replace(making, folder / parts.TRACE)
        private.replace(folder / parts.SUMMARY, content)
    finally:
        making.unlink(missing_ok=True)
    # Those of ranks that have died before the others had written theirs, too.
    for trace in [*folder.glob("rank-*.json.gz"), *folder.glob(".rank-*.json.gz")]:
        trace.unlink()


def _refuse(folder: Path, why: str) -> int:
    print(clean(f"profile {folder.name}: {why}"), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
