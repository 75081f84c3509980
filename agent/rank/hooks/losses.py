"""Reads a loss, or another number that the script computes, without stalling its device."""

from __future__ import annotations

import math
import sys
import weakref
from typing import Any, Final

from ddptop.agent.rank.records.device_time import CAPTURES

_DEEPEST: Final = 4
"""Products and quotients, the last one first, among which the division for accumulation is looked for."""
_ROUNDING: Final = 1e-5
"""A factor is rounded to 1/k in float32 at the worst."""


class Known:
    """A number that is on the host."""

    __slots__ = ("_value",)

    def __init__(self, value: float) -> None:
        self._value = value

    def read(self) -> float | None:
        """Return the value."""
        return self._value


class Arriving:
    """A number that is being copied from a device into pinned memory, asynchronously."""

    __slots__ = ("_arrived", "_host", "_value")

    def __init__(self, host: Any, arrived: Any) -> None:
        self._host = host
        self._arrived = arrived
        self._value: float | None = None

    def read(self) -> float | None:
        """Return the value, or None until the device has copied it."""
        if self._value is None and CAPTURES.ask(self._arrived.query):
            self._value = float(self._host)
        return self._value


def pending(torch: Any, tensor: Any) -> Known | Arriving | None:
    """Return the value of a one-element tensor, possibly pending; None where it cannot be read without a wait."""
    # A subclass (DTensor, a fake tensor of a tracer) may do anything when its value is read.
    if type(tensor) is not torch.Tensor or tensor.numel() != 1 or not tensor.is_floating_point():
        return None
    if tensor.is_cpu:
        return Known(tensor.item())
    if not tensor.is_cuda or CAPTURES.under_way:
        return None
    value = tensor.detach()
    host = torch.empty((), dtype=value.dtype, device="cpu", pin_memory=True)
    host.copy_(value.reshape(()), non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(value.device))
    return Arriving(host, arrived)


def parts(tensors: Any) -> frozenset[int]:
    """Return the whole numbers by which the script has divided a loss last, before it called `backward`.

    0 is among them where there may be one that cannot be read: on a device, or within what is compiled.
    Who accumulates gradients over k micro-batches mostly divides each loss by k: the loss of the step is the sum then.
    This is asked before the backward pass, which frees what the graph has saved.
    """
    made: Any = getattr(tensors, "grad_fn", None)
    found: set[int] = set()
    for _ in range(_DEEPEST):
        kind = type(made).__name__
        if kind == "CompiledFunctionBackward":
            found.add(0)
        if kind not in ("DivBackward0", "MulBackward0"):
            break
        # Not `_saved_other`, which calls hooks of saved tensors: those of a checkpoint compute its region again.
        other = getattr(made._raw_saved_other, "data", made)
        if other is not None and not getattr(other, "is_cpu", False):
            # What such a hook has made of it, or a number on a device, which is not waited for.
            found.add(0)
        elif other is not None and other.numel() == 1 and (factor := other.item()):
            divisor = factor if kind == "DivBackward0" else 1 / factor
            if math.isfinite(divisor) and abs(divisor - round(divisor)) < _ROUNDING * divisor:
                found.add(round(divisor))
        made = made.next_functions[0][0]
    return frozenset(found)


def noted(torch: Any, tensors: Any) -> Any:
    """Return what is remembered of a loss until it is known whether it is shown; for `later`."""
    if type(tensors) is not torch.Tensor or tensors.numel() != 1:
        return None
    return tensors.item() if tensors.is_cpu else tensors.detach()


def later(loss: Any) -> Known | Arriving | None:
    """Return the value, possibly pending, of what was `noted`."""
    return pending(sys.modules["torch"], loss) if hasattr(loss, "detach") else None if loss is None else Known(loss)


class Scaled:
    """The losses that a GradScaler multiplied, so that the script's own values are shown.

    It holds detached values, and no graph. A loss that the script computes from a scaled
    loss before it calls `backward` has no value here: no value is better than one that is 65536 times too large.
    """

    def __init__(self) -> None:
        self.pairs: list[tuple[weakref.ref[Any], Any]] = []
        """Scaled losses that wait for their backward pass, each with its value before."""

    def note(self, before: Any, after: Any) -> None:
        """Store argument and result of a call of `GradScaler.scale`."""
        # A disabled scaler returns its argument.
        pairs = zip(_several(before), _several(after), strict=False)
        self.pairs += [
            (weakref.ref(scaled), plain.detach())
            for plain, scaled in pairs
            if plain is not scaled and hasattr(plain, "detach") and hasattr(scaled, "detach")
        ]

    def plain(self, tensor: Any) -> Any:
        """Return the loss before scaling, `tensor` itself where nothing was scaled, None where it is unknown."""
        if not self.pairs:
            return tensor
        return next((plain for scaled, plain in self.pairs if scaled() is tensor), None)

    def spend(self, tensors: Any) -> None:
        """Forget the tensors on which `backward` was called, and those that were freed."""
        if self.pairs:
            used = {id(tensor) for tensor in _several(tensors)}
            alive = [(scaled, plain) for scaled, plain in self.pairs if scaled() is not None]
            self.pairs = [pair for pair in alive if id(pair[0]()) not in used][-16:]


def total(torch: Any, tensors: Any, scaled: Scaled) -> Known | Arriving | None:
    """Return the loss on which `backward` was called, possibly pending; the sum where it was called on several."""
    if not scaled.pairs and not isinstance(tensors, (list, tuple)):
        return pending(torch, tensors)
    plain = [scaled.plain(tensor) for tensor in _several(tensors)]
    scaled.spend(tensors)
    if len(plain) == 1:
        return pending(torch, plain[0])
    if any(type(each) is not torch.Tensor or each.numel() != 1 for each in plain):
        return None
    if len({each.device for each in plain}) != 1:
        return None
    return pending(torch, sum(each.detach().reshape(()) for each in plain))


def _several(tensors: Any) -> list[Any]:
    return list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
