"""The exceptions that an unusable SQLite file of a run raises."""

from __future__ import annotations

import sqlite3
from typing import Final

DAMAGE: Final = (sqlite3.Error, UnicodeDecodeError)
"""Raised for a file that cannot be used; the second where SQLite quotes damaged text in its message."""
