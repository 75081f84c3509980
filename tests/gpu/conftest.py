"""The tests of this folder need a CUDA device; without one they are skipped, and cost nothing.

    python -m pytest tests/gpu -q                          # on a machine with a device
    DDPTOP_TEST_DEVICE=cpu python -m pytest tests/gpu -q   # a rehearsal of the programs on the CPU
    tests/gpu/run.sh                                       # with an environment of its own, without a registry

No test imports torch: the programs do, each in processes of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.gpu import devices

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run here: all tests without a device, those that ask for `cuda` in a rehearsal."""
    here = [item for item in items if _HERE in item.path.parents]
    if not here:
        return
    kind = devices.device()
    for item in here:
        if kind is None or (kind == "cpu" and "cuda" in item.fixturenames):  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.skip(reason=devices.NONE))


@pytest.fixture
def cuda() -> None:
    """Ask for a real device: a rehearsal on the CPU says nothing here."""


@pytest.fixture
def several(cuda: None) -> int:
    """The number of devices, two at least."""
    if devices.count() < 2:
        pytest.skip("a single CUDA device")
    return devices.count()
