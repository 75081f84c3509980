"""Arrays as the bytes that a file holds: compressed, and checked in every way when they are read. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

_EFFORT: Final = 1
"""Of zlib: the arrays of 64 ranks take a third of a second, and more effort saves little."""
_LARGEST: Final = 1 << 29
"""Bytes of one array at most; a larger one is damaged."""


class Damaged(Exception):
    """What is saved cannot be used."""


class _Packed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One array."""

    kind: str
    """Type in NumPy's spelling, little-endian: `<f4`."""
    shape: tuple[int, ...]
    data: bytes
    """Its bytes, the first one of each number before all second ones, because those are alike; by zlib."""


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[tuple[_Packed, ...]] = msgspec.msgpack.Decoder(tuple[_Packed, ...])


def packed(*arrays: npt.NDArray[Any]) -> bytes:
    """Return some arrays as bytes."""
    return _encoder.encode([_pack(array) for array in arrays])


def _pack(array: npt.NDArray[Any]) -> _Packed:
    kind = array.dtype.newbyteorder("<")
    flat = np.ascontiguousarray(array, kind).reshape(-1).view(np.uint8)
    planes = flat.reshape(-1, kind.itemsize).T.tobytes()
    return _Packed(kind.str, array.shape, zlib.compress(planes, _EFFORT))


def unpacked(payload: object, *wanted: tuple[str, Sequence[int | None]]) -> list[npt.NDArray[Any]]:
    """Return arrays out of bytes.

    Args:
        payload: what `packed` returned.
        wanted: for each array its type and its shape, None for a length that is free.

    Raises:
        Damaged: it is anything else.
    """
    try:
        found = _decoder.decode(payload)  # type: ignore[arg-type]  # a column of a file has any type
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise Damaged(str(error)) from error
    if len(found) != len(wanted):
        raise Damaged(f"{len(found)} arrays instead of {len(wanted)}")
    return [_unpack(each, kind, shape) for each, (kind, shape) in zip(found, wanted, strict=True)]


def _unpack(found: _Packed, kind: str, shape: Sequence[int | None]) -> npt.NDArray[Any]:
    fits = len(found.shape) == len(shape) and all(
        0 <= length <= _LARGEST and wanted in (None, length) for length, wanted in zip(found.shape, shape, strict=True)
    )
    dtype = np.dtype(kind)
    size = dtype.itemsize
    for length in found.shape:
        size *= length
    if found.kind != dtype.newbyteorder("<").str or not fits or size > _LARGEST:
        raise Damaged("an array of another type or shape")
    inflating = zlib.decompressobj()
    try:
        planes = inflating.decompress(found.data, size + 1)
    except zlib.error as error:
        raise Damaged(str(error)) from error
    if len(planes) != size:
        raise Damaged("an array of another length")
    flat = np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(dtype.itemsize, -1).T)
    array: npt.NDArray[Any] = flat.reshape(-1).view(dtype.newbyteorder("<")).astype(dtype).reshape(found.shape)
    return array
