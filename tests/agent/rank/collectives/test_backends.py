"""The name of the backend that a run is shown with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ddptop.agent.rank.collectives.backends import described


@pytest.mark.parametrize(
    ("backend", "config", "expected"),
    [
        ("gloo", "cpu:gloo,cuda:gloo", "gloo"),
        # What torch says after `init_process_group()` without a backend, without and with CUDA.
        ("undefined", "cpu:gloo", "gloo"),
        ("undefined", "cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl"),
        ("undefined", "cpu:gloo,cuda:gloo", "gloo"),
    ],
)
def test_a_backend_that_torch_has_chosen_is_named(backend: str, config: str, expected: str) -> None:
    torch = SimpleNamespace(distributed=SimpleNamespace(get_backend_config=lambda: config))
    assert described(torch, backend) == expected
