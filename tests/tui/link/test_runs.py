"""The load of this machine, which stands above the list of its runs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import psutil
import pytest

from ddptop.agent.client.host.machine import Machine


class Times(NamedTuple):
    """Seconds of all cores, as psutil has them on Linux."""

    user: float
    system: float
    idle: float
    iowait: float
    guest: float


def test_the_load_is_that_since_the_look_before_in_whatever_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown at the first look and where no time has passed; a guest's time is in that of the user already."""
    times = iter([Times(10, 5, 80, 5, 4), Times(13, 6, 85, 6, 6), Times(13, 6, 85, 6, 6), Times(23, 6, 85, 6, 16)])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(times))
    host = Machine()
    loads = []
    for _ in range(4):
        with ThreadPoolExecutor(1) as thread:
            loads.append(thread.submit(host.look).result().cpu_percent)
    # Busy for 4 s of 10, for no time, and for 10 s of 10.
    assert loads == [None, pytest.approx(40), None, pytest.approx(100)]
