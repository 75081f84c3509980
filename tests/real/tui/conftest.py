"""What tests of the dashboard by real processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.processes import quiet


@pytest.fixture
def quiet_run() -> Iterator[str]:
    """A run that is alive as far as anybody can tell."""
    with quiet.run() as name:
        yield name
