"""The SQLite files of runs: which errors say that one cannot be used."""

from __future__ import annotations

import sqlite3
from typing import Final

DAMAGE: Final = (sqlite3.Error, UnicodeDecodeError)
"""Raised for a file that cannot be used; the second where SQLite quotes what it cannot make sense of."""
