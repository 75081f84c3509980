"""The ways in which a rank may communicate with the others unseen by this agent.

Torch's process groups are observed by `timing`.  What goes past them is known here by the modules that a script
has loaded for it: loaded, they may be used.
"""

from __future__ import annotations

import sys
from typing import Any, Final

_LIBRARIES: Final = (
    "bagua",
    "byteps",
    "cupyx.distributed",
    "distributed",
    "hivemind",
    "horovod",
    "mpi4py",
    "nccl",
    "nvshmem",
    "ray",
    "torch_xla",
    "torchft",
    "ucp",
    "ucxx",
)
"""Modules by which ranks communicate without a process group of torch; `distributed` is Dask's."""
_RPC: Final = "torch.distributed.rpc"


def may_be_unseen(*, watches: bool) -> bool:
    """Say whether this process has what it needs to communicate past our hooks.

    Args:
        watches: whether the process group that the script has made, if any, is hooked.
    """
    if any(name in sys.modules for name in _LIBRARIES) or _has_rpc(sys.modules.get(_RPC)):
        return True
    # A group that another thread than the main one has made is not hooked.
    return not watches and _has_group(getattr(sys.modules.get("torch"), "distributed", None))


def _has_group(distributed: Any) -> bool:
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _has_rpc(rpc: Any) -> bool:
    """Say whether an agent of torch's RPC runs, True where the module does not tell."""
    if rpc is None:
        return False
    # Where torch is built without RPC the module has none of it.
    is_set = getattr(rpc, "_is_current_rpc_agent_set", None)
    return bool(is_set()) if is_set is not None else hasattr(rpc, "rpc_sync")
