"""Torch's own record of collectives, as its versions spell it."""

from __future__ import annotations

import pytest
from support.fakes.torch_records import dump, entry, torch_with

from ddptop.agent.rank.collectives import recorder


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
