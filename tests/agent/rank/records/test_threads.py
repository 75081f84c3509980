"""The numbers of threads that a rank tells are those of its training thread at this moment."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest

from ddptop.agent.rank.inspection.probing import facts
from ddptop.agent.rank.records.threads import Pools


def test_a_number_that_the_script_sets_is_told_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch answers for the thread that asks: it is asked on the training thread, once for each heartbeat."""
    numbers = threading.local()
    torch = SimpleNamespace(get_num_threads=lambda: getattr(numbers, "within", 1), get_num_interop_threads=lambda: 3)
    monkeypatch.setitem(__import__("sys").modules, "torch", torch)
    monkeypatch.setattr(facts, "quota", lambda _: 1.5)
    pools = Pools()
    assert pools.threads(0) is None
    numbers.within = 8
    assert pools.due
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        pools.look()
    finally:
        os.sched_setaffinity(0, cores)
    assert not pools.due
    told = []
    asking = threading.Thread(target=lambda: told.append(pools.threads(2)))
    asking.start()
    asking.join()
    (found,) = told
    assert found is not None
    assert (found.within, found.between, found.children, found.pins) == (8, 3, 2, 0)
    assert (found.cores, found.on) == (1.0, str(min(cores)))
    assert pools.due
