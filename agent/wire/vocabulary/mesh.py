"""Where ranks stand on a device mesh or in a pipeline: how that is written, and who works on the same samples. Pure.

Scripts name the axes as they like (`ddptop.agent.start(coordinates=...)`); these are the names in use
in PyTorch's documentation, in torchtitan and in Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SHORT: Final = {
    "data": "dp", "tensor": "tp", "pipeline": "pp", "stage": "pp", "context": "cp", "sequence": "sp", "expert": "ep",
    "dp_replicate": "rep", "replicate": "rep", "dp_shard": "fsdp", "shard": "fsdp",
}  # fmt: skip
"""Axes that have a shorter name everybody knows."""
_ONE_REPLICA: Final = frozenset(
    ("tensor", "tp", "pipeline", "pipe", "pp", "stage", "context", "cp", "sequence", "sp", "model")
)
"""Axes along which ranks hold parts of one model: they all work on the same samples."""


def place_of(coordinates: Mapping[str, int] | None) -> str:
    """Return `dp1·tp0`; empty where nothing is known."""
    return "·".join(f"{SHORT.get(axis, axis)}{where}" for axis, where in (coordinates or {}).items())


def order_of(coordinates: Mapping[str, int] | None) -> str | None:
    """Return what sorts places by their numbers, axis by axis; None where nothing is known."""
    return "·".join(f"{axis}{where:08d}" for axis, where in coordinates.items()) if coordinates else None


def replica_of(rank: int, coordinates: Mapping[str, int] | None) -> object:
    """Return a value that is equal for ranks which work on the same samples; each rank has its own by itself."""
    if not coordinates:
        return rank
    return frozenset((axis, where) for axis, where in coordinates.items() if axis.lower() not in _ONE_REPLICA)
