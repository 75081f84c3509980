"""What is said of a rank's communication is known, or is not said."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ddptop.agent.rank.collectives import timing, wrapper
from ddptop.agent.rank.collectives.timing import Collectives
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.records.stamps import Stamps


@pytest.fixture
def collectives(monkeypatch: pytest.MonkeyPatch) -> Collectives:
    """The observation of a rank that has no process group, whatever other tests have loaded."""
    monkeypatch.setattr(timing, "_has_group", lambda distributed: False)
    monkeypatch.setattr(timing, "_has_rpc", lambda rpc: False)
    found = Collectives(Stamps(), Faults())
    found.expects_groups = True
    return found


def test_a_rank_without_a_process_group_has_not_communicated(collectives: Collectives) -> None:
    """That is known only where every group would have been given to `watch`."""
    assert collectives.communicated is False
    collectives.expects_groups = False
    assert collectives.communicated is None


@pytest.mark.parametrize(
    ("mechanism", "told"),
    [(timing.HOOKS, False), (wrapper.WRAPPER, None), (wrapper.FUNCTIONS, None), (None, None)],
)
def test_only_the_hooks_of_torch_see_every_call(collectives, mechanism, told):
    """A build of torch without hooks leaves some calls unseen: no word then, until a call is seen."""
    collectives._watches, collectives.mechanism = True, mechanism
    assert collectives.communicated is told
    collectives._has_seen = True
    assert collectives.communicated is True


@pytest.mark.parametrize("name", ["mpi4py", "horovod", "cupyx.distributed"])
def test_another_library_may_communicate_unseen(collectives, monkeypatch, name):
    """A script that has loaded one of those is not judged."""
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert collectives.communicated is None


@pytest.mark.parametrize(
    ("rpc", "found"),
    [
        (None, False),
        (SimpleNamespace(_is_current_rpc_agent_set=lambda: False), False),
        (SimpleNamespace(_is_current_rpc_agent_set=lambda: True), True),
        (SimpleNamespace(rpc_sync=print), True),
        (SimpleNamespace(), False),
    ],
)
def test_an_agent_of_rpc_is_noticed(rpc: Any, found: bool) -> None:
    """An older torch that does not tell is taken to have one; a build without RPC has none."""
    assert timing._has_rpc(rpc) is found


def test_a_group_that_is_not_hooked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that another thread made is not given to `watch`; torch tells of it."""
    distributed = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))
    assert timing.may_be_unseen(watches=False)
    assert not timing.may_be_unseen(watches=True)
