"""A SQLite file that another process holds, so that nobody else can read or write it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = DELETE")
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(database: Path) -> Iterator[None]:
    """Have another process hold a file until the block ends; no other may use it when it begins."""
    # Readers of a file with a journal of its own (WAL) are not locked out: it is brought back to the usual one.
    command = [sys.executable, "-c", _HOLDER, str(database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "held\n"
            yield
        finally:
            holder.stdin.close()
            holder.wait()
