"""Buckets as the bytes that a file holds, one blob for the buckets and one for each of their numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from ddptop.agent.record.history.series import Buckets, Cells

INDEX: Final = np.dtype([("rank", "<u4"), ("key", "<i8"), ("at", "<f8"), ("weight", "<f4")])
"""A bucket without its numbers."""
_FLOAT: Final = np.dtype("<f4")


def packed(buckets: Buckets, *, ranged: bool) -> Mapping[str, bytes]:
    """Return blobs by number, "" for the buckets without their numbers.

    A number has its means, and least, greatest and count only where these are not plain; least and greatest only where
    they are to be kept (`ranged`).
    """
    index = np.empty(len(buckets.ranks), INDEX)
    index["rank"], index["key"], index["at"], index["weight"] = (
        buckets.ranks, buckets.keys, buckets.at, buckets.weight,
    )  # fmt: skip
    cells = buckets.cells.astype(_FLOAT, copy=False)
    mean, low, high, count = cells.swapaxes(0, 1)
    unknown = np.isnan(mean)
    # A bucket of a single step: all are the mean. Of all numbers at once: one by one takes ten times as long.
    flat = (unknown | ((low == mean) & (high == mean))).all(axis=1).tolist()
    plain = (count == np.where(unknown, np.float32(0), buckets.weight)).all(axis=1).tolist()
    found = {"": index.tobytes()}
    for place, number in enumerate(buckets.numbers):
        payload = cells[place, : 3 if ranged and not flat[place] else 1].tobytes()
        found[number] = payload if plain[place] else payload + cells[place, 3].tobytes()
    return found


def unpacked_cells(payload: bytes, weight: Cells) -> Cells:
    """Return the cells of one number, (4, buckets); raises `ValueError` where the bytes are not those of a number."""
    rows = np.frombuffer(payload, _FLOAT).reshape(-1, len(weight))
    if not 1 <= len(rows) <= 4:
        raise ValueError("no number of these buckets")
    cells = np.empty((4, len(weight)), np.float32)
    cells[:3] = rows[:3] if len(rows) > 2 else rows[0]
    cells[3] = rows[-1] if len(rows) in (2, 4) else np.where(np.isnan(rows[0]), np.float32(0), weight)
    return cells
