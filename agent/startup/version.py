"""The version of ddptop.

It stands here as well as in `pyproject.toml`: to look it up in what pip has installed takes as long as all else that
`ddptop --version` does, in every rank too.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
