"""Torch's own record of collectives, as a test wants it, without torch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def entry(number: int, **more: Any) -> dict[str, Any]:
    """Return an entry in torch's own form: an all-reduce of 800 bytes that has completed."""
    return {
        "process_group": ["0", "default_pg"], "collective_seq_id": number, "profiling_name": "gloo:all_reduce",
        "input_sizes": [[10, 20]], "input_dtypes": ["Float"], "is_p2p": False, "retired": True, "state": "scheduled",
        "time_created_ns": time.time_ns(), "pg_id": 0,
    } | more  # fmt: skip


def dump(*entries: dict[str, Any]) -> Callable[[], bytes]:
    """Return a function of torch's that tells these."""
    return lambda: json.dumps({"version": "2.10", "pg_config": {"": {}}, "entries": entries}).encode()


def torch_with(**dumps: Callable[[], bytes]) -> Any:
    """Return a torch with such functions."""
    return SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=SimpleNamespace(**dumps)))
