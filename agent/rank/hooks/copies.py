"""Stamps the copies of tensors from the host's memory to a device: `Tensor.to`, `Tensor.cuda`, `Tensor.copy_`.

Without it their time would be `other`, or that of the phase in which the script copies.  The hooks stand on the class
of tensors, where every call of these methods passes them, so they are put there only once the script uses a
device.  A copy that a compiled function makes is not seen, and one in a CUDA graph is not made by the host.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection
from types import MethodType
from typing import Any, Final

from ddptop.agent.rank.hooks.around import replace
from ddptop.agent.rank.records.stamps import COPY, Stamps

MOST: Final = 64
"""Copies of a step that are stamped; further ones belong to the phase in which they are made."""
_HOST: Final = frozenset({"cpu", "meta"})

_Copies = Callable[..., bool]
"""Says whether the call of a method with its tensor and these arguments copies from the host's memory to a device;
raises whatever the arguments make it raise."""


def watch(torch: Any, stamps: Stamps, note: Callable[[str, Exception], None], host: Collection[str] = _HOST) -> None:
    """Stamp the copies of the training thread from now on.

    Args:
        torch: the module.
        stamps: those of the rank.
        note: is given the errors of the hooks.
        host: types of devices that are no copy's target.
    """
    parse = torch._C._nn._parse_to
    # A tensor of another class may do anything.
    plain = frozenset({torch.Tensor, torch.nn.Parameter})

    def of_host(tensor: Any) -> bool:
        return type(tensor) in plain and tensor.is_cpu

    def to(tensor: Any, *args: Any, **kwargs: Any) -> bool:
        # First what is cheap: most calls change the type of what is on the device.
        if not of_host(tensor):
            return False
        # torch's own reader of these arguments does not know that one.
        kwargs.pop("copy", None)
        device = parse(*args, **kwargs)[0]
        return device is not None and device.type not in host

    def cuda(tensor: Any, *_: Any, **__: Any) -> bool:
        return of_host(tensor)

    def copy_(tensor: Any, source: Any = None, *_: Any, **__: Any) -> bool:
        return of_host(source) and type(tensor) in plain and tensor.device.type not in host

    stamping = _Stamping(torch, stamps, note)
    for copies in (to, cuda, copy_):
        stamping.hook(copies.__name__, copies)


class Hooked:
    """A method of a class with a hook around its calls on instances.

    On the class itself it is the method as it was: code of torch and of others compares `torch.Tensor.to` with
    the function that it is given.
    """

    def __init__(self, original: Any, call: Callable[..., Any]) -> None:
        self._original = original
        self._call = call

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the method for an instance, or that of the class."""
        return self._original if instance is None else MethodType(self._call, instance)


class _Stamping:
    """The hooks of one process: they share the count of a step's copies."""

    def __init__(self, torch: Any, stamps: Stamps, note: Callable[[str, Exception], None]) -> None:
        self._owner = torch.Tensor
        self._compiling = torch.compiler.is_compiling
        self._note = note
        self._stamps = stamps
        self._step = 0
        self._copies = 0

    def hook(self, name: str, copies: _Copies) -> None:
        """Stamp the calls of a tensor's method for which `copies` is true."""
        original, stamps = getattr(self._owner, name), self._stamps
        may_stamp, copy = self._may_stamp, self._copying(name, original)

        @functools.wraps(original)
        def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not stamps.recording:
                return original(tensor, *args, **kwargs)
            try:
                stamped = copies(tensor, *args, **kwargs) and may_stamp()
            except Exception:
                # Arguments that do not fit: torch raises for them.
                stamped = False
            return (copy if stamped else original)(tensor, *args, **kwargs)

        replace(self._owner, name, Hooked(original, call))

    def _copying(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        stamps, note, what = self._stamps, self._note, f"Tensor.{name}"

        def copy(*args: Any, **kwargs: Any) -> Any:
            try:
                stamps.enter(COPY)
            except Exception as error:
                note(what, error)
            try:
                return original(*args, **kwargs)
            finally:
                try:
                    stamps.leave()
                except Exception as error:
                    # A failed device raises in the next call to it: that call must be the script's.
                    note(what, error)

        return copy

    def _may_stamp(self) -> bool:
        return threading.get_ident() == self._stamps.thread and not self._compiling() and self._has_room()

    def _has_room(self) -> bool:
        stamps = self._stamps
        # What is copied before the training begins, such as the model, belongs to no step.
        if not stamps.begun:
            return False
        if stamps.steps != self._step:
            self._step, self._copies = stamps.steps, 0
        self._copies += 1
        return self._copies <= MOST
