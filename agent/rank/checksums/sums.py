"""The checksum of a tensor, computed on its device and read later, without a wait for the device.

Exact: the sum, modulo 2^64, of the tensor's bits in words of 64, each times an odd weight.  Any change of a single word
changes it.  Changes of several words may cancel out: an exchange of two whose distance is a multiple of `WIDTH` words,
or an even number of changes to the highest bits of words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ddptop.agent.rank.records.device_time import CAPTURES

WIDTH: Final = 1021
"""Words after which the weights repeat: a prime number, so that rows of a matrix do not get the same weights."""
_STEP: Final = -7046029254386353131
"""2^64 divided by the golden ratio, as a signed number: multiples of it are spread evenly."""
_INTEGERS: Final = {1: "int8", 2: "int16", 4: "int32"}
"""By size in bytes, the type as which what does not fill a word is read."""


class Sums:
    """The checksums of some tensors of one kind of device."""

    def __init__(self, parts: Sequence[_Known | _Arriving]) -> None:
        self._parts = parts

    def read(self) -> bytes | None:
        """Return a little-endian `int64` for each tensor, None until all have come from their device.

        Raises:
            RuntimeError: the device has failed.
        """
        found = [part.read() for part in self._parts]
        values = [value for part in found if part is not None for value in part]
        return None if None in found else b"".join([value.to_bytes(8, "little", signed=True) for value in values])


class _Known:
    """Checksums that are on the host."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def read(self) -> list[int] | None:
        found: list[int] = self._values.tolist()
        return found


class _Arriving:
    """Checksums that are being copied from a device into pinned memory."""

    def __init__(self, host: Any, arrived: Any) -> None:
        self._host = host
        self._arrived = arrived
        self._values: list[int] | None = None

    def read(self) -> list[int] | None:
        if self._values is None and CAPTURES.ask(self._arrived.query):
            self._values = self._host.tolist()
        return self._values


class Weights:
    """The weights of the words, made once for each device."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._made: dict[Any, Any] = {}

    def on(self, device: Any) -> Any:
        """Return the weights on a device."""
        weights = self._made.get(device)
        if weights is None:
            numbers = self._torch.arange(WIDTH, dtype=self._torch.int64, device=device)
            weights = self._made[device] = numbers.mul_(_STEP).bitwise_or_(1)
        return weights


def is_readable(torch: Any, tensor: Any) -> bool:
    """Say whether this is a tensor whose bits can be summed without a wait: dense, on a CPU or a CUDA device."""
    # A subclass may do anything when its bits are read. The bits of a lazy conjugate or negative are not its values.
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not (
        tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
    )
    return plain and tensor.layout is torch.strided and (tensor.is_cpu or tensor.is_cuda)


def checksums(torch: Any, tensors: Sequence[Any], weights: Weights) -> Sums:
    """Compute the checksums of tensors that are readable, in their order."""
    parts: list[_Known | _Arriving] = []
    begin = 0
    # Tensors of one device are mostly together; each run of them is copied at once.
    for end in range(1, len(tensors) + 1):
        device = tensors[begin].device
        if end == len(tensors) or tensors[end].device != device:
            parts.append(
                _on_host(torch, device, [_sum(torch, each, weights.on(device)) for each in tensors[begin:end]])
            )
            begin = end
    return Sums(parts)


def _on_host(torch: Any, device: Any, sums: list[Any]) -> _Known | _Arriving:
    values = torch.stack(sums)
    if values.is_cpu:
        return _Known(values)
    host = torch.empty(len(sums), dtype=torch.int64, device="cpu", pin_memory=True)
    host.copy_(values, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(device))
    return _Arriving(host, arrived)


def _sum(torch: Any, tensor: Any, weights: Any) -> Any:
    """Return the checksum of a tensor as a tensor of one element on its device."""
    values = tensor.detach().contiguous().view(-1)
    size = values.element_size()
    if values.storage_offset() * size % 8:
        # A view into a larger tensor, whose words begin elsewhere.
        values = values.clone()
    in_words = values.numel() * size // 8 * 8 // size
    words = values[:in_words].view(torch.int64)
    rows = words.numel() // WIDTH
    rest = words[rows * WIDTH :]
    total = (rest * weights[: rest.numel()]).sum()
    if rows:
        total = total + (words[: rows * WIDTH].view(rows, WIDTH).sum(0) * weights).sum()
    if in_words < values.numel():
        odd = values[in_words:].view(getattr(torch, _INTEGERS[size])).to(torch.int64)
        total = total + (odd * weights[-odd.numel() :]).sum()
    return total
