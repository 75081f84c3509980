"""Reading a loss without stalling the device it is on."""

from __future__ import annotations

from typing import Any


class Known:
    """A loss that was on the host already."""

    __slots__ = ("_value",)

    def __init__(self, value: float) -> None:
        self._value = value

    def read(self) -> float | None:
        """Return the value."""
        return self._value


class Arriving:
    """A loss on its way from a device into pinned memory; the copy waits for nobody."""

    __slots__ = ("_arrived", "_host", "_value")

    def __init__(self, host: Any, arrived: Any) -> None:
        self._host = host
        self._arrived = arrived
        self._value: float | None = None

    def read(self) -> float | None:
        """Return the value, or None while the device has not come that far."""
        if self._value is None and self._arrived.query():
            self._value = float(self._host)
        return self._value


def pending(torch: Any, tensor: Any) -> Known | Arriving | None:
    """Return a way to the value of a one-element tensor, None where there is none without a wait."""
    if type(tensor) is not torch.Tensor or tensor.numel() != 1:
        return None
    value = tensor.detach()
    if value.device.type == "cpu":
        return Known(float(value))
    if value.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return None
    host = torch.empty((), dtype=value.dtype, pin_memory=True)
    host.copy_(value.reshape(()), non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(value.device))
    return Arriving(host, arrived)
