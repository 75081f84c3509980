"""The exceptions that an unusable SQLite file of a run raises, and those of one that another process holds."""

from __future__ import annotations

import sqlite3
from typing import Final

DAMAGE: Final = (sqlite3.Error, UnicodeDecodeError)
"""Raised for a file that cannot be used; the second where SQLite quotes damaged text in its message."""
_LOCKED: Final = ("database is locked", "database table is locked", "database schema is locked", "locking protocol")
"""How SQLite's messages begin that are of a lock; Python has the number of an error only from 3.11 on."""


class Locked(Exception):
    """Another process holds the file at present: what is in it is not known, and can be read later."""


def is_locked(error: Exception) -> bool:
    """Say whether one of `DAMAGE` comes of a lock, and not of a file that cannot be used."""
    return isinstance(error, sqlite3.OperationalError) and str(error).startswith(_LOCKED)
