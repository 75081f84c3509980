"""Torch's own record of collectives, as its versions spell it, and what is made of it where nothing else tells."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ddptop.agent.rank.collectives import recorder
from ddptop.agent.rank.collectives.timing import Collectives
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.inspection.inspecting import Inspecting
from ddptop.agent.rank.records.stamps import Stamps
from ddptop.agent.run.rundir import identify
from ddptop.agent.wire import GroupCalls, OpenCall, PastCall


def entry(number: int, **more: Any) -> dict[str, Any]:
    """Return an entry in torch's own form."""
    return {
        "process_group": ["0", "default_pg"], "collective_seq_id": number, "profiling_name": "gloo:all_reduce",
        "input_sizes": [[10, 20]], "input_dtypes": ["Float"], "is_p2p": False, "retired": True, "state": "scheduled",
        "time_created_ns": time.time_ns(), "pg_id": 0,
    } | more  # fmt: skip


def torch_with(**dumps: Callable[[], bytes]) -> Any:
    """Return a torch with such functions."""
    return SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=SimpleNamespace(**dumps)))


def dump(*entries: dict[str, Any]) -> Callable[[], bytes]:
    """Return a function of torch's that tells these."""
    return lambda: json.dumps({"version": "2.10", "pg_config": {"": {}}, "entries": entries}).encode()


def unbuilt() -> bytes:
    raise RuntimeError("not built with NCCL")


def test_entries_of_both_backends_are_read() -> None:
    """Gloo tells completion by `retired`, NCCL by the state too; messages from rank to rank are left out."""
    torch = torch_with(
        _dump_fr_trace_json=dump(entry(1), entry(2, retired=False), entry(0, is_p2p=True)),
        _dump_nccl_trace_json=dump(entry(3, retired=False, state="completed", profiling_name="nccl:broadcast")),
    )
    found = recorder.entries(torch)
    assert [(each.op, each.collective_seq_id, each.is_open, each.bytes) for each in found] == [
        ("all_reduce", 1, False, 800), ("all_reduce", 2, True, 800), ("broadcast", 3, False, 800),
    ]  # fmt: skip


@pytest.mark.parametrize("told", [b"", b"{", b'{"entries": [{"process_group": 7}]}', b"\xff", b'{"entries": null}'])
def test_a_form_that_is_not_known_tells_nothing(told: bytes) -> None:
    """Nor does a torch without a recorder, or without a backend."""
    assert recorder.entries(torch_with(_dump_fr_trace_json=lambda: told, _dump_nccl_trace_json=unbuilt)) == []
    assert recorder.entries(torch_with()) == []
    assert recorder.entries(None) == []


def test_where_no_hook_works_torchs_record_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts, the newest calls and those that have not completed are all torch's then."""
    monkeypatch.setitem(
        sys.modules, "torch", torch_with(_dump_fr_trace_json=dump(*map(entry, range(1, 20)), entry(20, retired=False)))
    )
    process = identify(os.getpid())
    assert process is not None
    inspecting = Inspecting(Collectives(Stamps(), Faults()), Faults(), process, time.time_ns())
    told = inspecting.inspect(3, stacks=False)
    assert told.groups == (GroupCalls("0", 20, (), (PastCall("all_reduce", 800),) * 16),)
    (call,) = told.open
    assert (call.op, call.number, call.bytes, call.sure) == ("all_reduce", 20, 800, True)
    assert isinstance(call, OpenCall)
    assert (told.observed, told.problem, told.status != "") == (True, "", True)


def test_what_fails_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that has failed the stacks are told all the same, and the reason why the rest is missing."""
    process = identify(os.getpid())
    assert process is not None
    collectives, faults = Collectives(Stamps(), Faults()), Faults()

    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(collectives, "open", fail)
    inspecting, found = Inspecting(collectives, faults, process, time.time_ns()), []
    # From a thread, as the agent does: its own stack is left out.
    thread = threading.Thread(target=lambda: found.append(inspecting.inspect(3, stacks=True)))
    thread.start()
    thread.join()
    (told,) = found
    assert told.threads[0].main
    assert "illegal memory access" in told.problem
    assert (told.open, told.groups, told.observed, faults.count) == ((), (), False, 1)
