"""What a process group uses for the tensors of each device: how many at a time, and whose clock tells."""

from __future__ import annotations

import weakref
from typing import Any, Final, NamedTuple

from ddptop.agent.rank.records.device_time import clock_of
from ddptop.agent.rank.records.stamps import DeviceClock

_GLOO_WORKERS: Final = 2
"""Threads of a gloo process group; torch offers no way to ask or to set."""


class Lane(NamedTuple):
    """What a process group uses for the tensors of one device."""

    workers: int
    """How many collectives it works on at a time, 0 where that is not known."""
    clock: DeviceClock | None
    """The device's, where collectives run there and the host does not wait for them."""
    told: bool
    """Whether the callback of a future tells of completion."""


class Lanes:
    """The lanes of one process group; each is asked for once."""

    def __init__(self, torch: Any, group: Any) -> None:
        self.group = str(group.group_name)[:12]
        """Its name, the same on all its ranks; long ones are hashes."""
        # Weakly: a group that is destroyed must be free to go.
        self._reference = weakref.ref(group)
        self._torch = torch
        self._lanes: dict[Any, Lane] = {}

    def of(self, tensors: list[Any]) -> Lane:
        """Return what these tensors go through; a barrier has none."""
        device = tensors[0].device if tensors else None
        lane = self._lanes.get(device)
        if lane is None:
            lane = self._lanes[device] = self._lane(device)
        return lane

    def _lane(self, device: Any) -> Lane:
        group = self._reference()
        if group is None:
            return Lane(0, None, False)
        # A barrier stops the host whatever the backend; only gloo's future tells when it is over.
        backend = group if device is None else group._get_backend(self._torch.device(device.type))
        name = backend.name()
        if str(name).lower() == "gloo":
            return Lane(_GLOO_WORKERS, None, True)
        if device is not None and device.type == "cuda":
            return Lane(0, clock_of(self._torch, device), True)
        return Lane(0, None, device is not None and device.type == "cpu")
