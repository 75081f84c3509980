"""The backends of a process group, one for the tensors of each device: their workers and clocks."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ddptop.agent.rank.collectives.counted import Counted, name_of
from ddptop.agent.rank.records.device_time import clock_of
from ddptop.agent.rank.records.stamps import DeviceClock

_GLOO_WORKERS: Final = 2
"""Threads of a gloo process group; torch has no function to read or to set it."""


def described(torch: Any, backend: str) -> str:
    """Return the name of the default group's backend, given what `get_backend` says.

    That is "undefined" where the script has named none. Then torch has chosen one for each device, in its own notation
    such as "cpu:gloo,cuda:nccl", which is returned; a single backend without its device.
    """
    if backend != "undefined":
        return backend
    told = str(torch.distributed.get_backend_config())
    names = {each.partition(":")[2] for each in told.split(",")}
    return names.pop() if len(names) == 1 else told


class Backend(NamedTuple):
    """The part of a process group that works on the tensors of one device."""

    workers: int
    """Number of collectives that it works on at a time, 0 where that is not known."""
    clock: DeviceClock | None
    """Clock of the device, where collectives run there and the host does not wait for them."""
    has_future: bool
    """True where the callback of a future reports completion."""


class Backends:
    """The backends of one process group, by device; each is looked up once."""

    counted: Counted | None = None
    """The calls of the group, from the first one that is noted."""

    def __init__(self, torch: Any, group: Any) -> None:
        self.group = name_of(group)
        # A weak reference, so that a destroyed group can be freed.
        self._reference: Callable[[], Any] = weakref.ref(group)
        self._torch = torch
        self._backends: dict[Any, Backend] = {}
        self._of_cpu: Backend | None = None

    def count(self, known: dict[str, Counted]) -> Counted:
        """Return the counter of the group's calls: the one that is known by its name, or else a new one."""
        counted = known.get(self.group)
        if counted is None:
            counted = known[self.group] = Counted(self._reference)
        self.counted = counted
        return counted

    @property
    def host_waits(self) -> bool:
        """True where the host waits for collectives, as far as those show that were made: none is on a device."""
        return all(backend.clock is None for backend in tuple(self._backends.values()))

    def of(self, tensors: list[Any]) -> Backend:
        """Return the backend of these tensors; a barrier has none."""
        if tensors and tensors[0].is_cpu:
            # To look up a device costs as much as all else here.
            if self._of_cpu is None:
                self._of_cpu = self._backends[None, "cpu"] = self._backend(tensors[0].device)
            return self._of_cpu
        device = tensors[0].device if tensors else None
        backend = self._backends.get(device)
        if backend is None:
            backend = self._backends[device] = self._backend(device)
        return backend

    def _backend(self, device: Any) -> Backend:
        group = self._reference()
        if group is None:
            return Backend(0, None, False)
        # A barrier blocks the host with any backend; only gloo's future reports its completion.
        found = group if device is None else group._get_backend(self._torch.device(device.type))
        name = found.name()
        if str(name).lower() == "gloo":
            return Backend(_GLOO_WORKERS, None, True)
        if device is not None and device.type == "cuda":
            return Backend(0, clock_of(self._torch, device), True)
        return Backend(0, None, device is not None and device.type == "cpu")
