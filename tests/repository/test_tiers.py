"""What needs minutes or several hosts is in the second tier, which README's command leaves out."""

from __future__ import annotations

import re
from typing import Final

import readme

TESTS: Final = readme.ROOT / "tests"
SECOND: Final = re.compile(r"mark\.timeout\(|\bsupport\.cluster\b")
"""In a file of tests: it asks for more than the usual time, or for hosts made for it."""


def test_no_file_of_the_first_tier_asks_for_minutes_or_hosts() -> None:
    """By what stands in it; how long the others take, the list of the slowest tests shows."""
    files = [path for path in TESTS.rglob("test_*.py") if path.name != "test_tiers.py"]
    asks = {path.relative_to(TESTS).parts[0] for path in files if SECOND.search(path.read_text(encoding="utf-8"))}
    assert asks == {"real"}
