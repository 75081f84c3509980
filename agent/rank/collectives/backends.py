"""The backends of a process group, one for the tensors of each device: their workers and clocks."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from ddptop.agent.rank.records.device_time import clock_of
from ddptop.agent.rank.records.stamps import Call, DeviceClock

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


AUTOGRAD: Final = "torch.autograd.graph"
"""The module that runs a backward pass, in which DDP's buckets are issued."""
RECENT: Final = 16
"""Newest calls of a group that are remembered."""
LONGEST: Final = 12
"""Characters of the name of a group."""


def name_of(group: Any) -> str:
    """Return the name of a process group, the same on all its ranks; long ones are hashes, and are cut."""
    return str(group.group_name)[:LONGEST]


def bytes_of(tensors: list[Any]) -> int:
    """Return the size of the tensors of a call, of sparse ones that of their parts."""
    try:
        return tensors[0].nbytes if len(tensors) == 1 else sum(tensor.nbytes for tensor in tensors)
    except RuntimeError:
        return sum(
            tensor._indices().nbytes + tensor._values().nbytes if tensor.is_sparse else tensor.nbytes
            for tensor in tensors
        )


def form_of(tensors: list[Any]) -> tuple[Any, Any] | None:
    """Return type and shape of the first tensor of a call; None where it has none."""
    return (tensors[0].dtype, tensors[0].shape) if tensors else None


Note: TypeAlias = "tuple[Backends, int, str, int, int, bool, bool, str, bool, tuple[Any, Any] | None, int]"
"""A call in a step that is only counted: the backends of its group, its number there, the operation,
when it was called, its bytes, whether it was asynchronous, whether in a backward pass, the module that has called C++
where that was looked up, whether by the training thread or for its backward pass, its form, and how many steps were
complete."""


class Counted:
    """The calls of one group so far; those to a single other rank are not counted."""

    __slots__ = ("calls", "group", "noted", "timeout_s")

    def __init__(self, group: Callable[[], Any]) -> None:
        """Begin to count; `group` returns the process group, None once it is gone."""
        self.group = group
        self.calls = 0
        self.timeout_s: float | None = None
        """Timeout of its calls, None where it is not known."""
        self.noted: deque[Call | Note] = deque(maxlen=RECENT)
        """The newest, the newest last."""

    @property
    def recent(self) -> list[Call]:
        """The newest calls, the newest last."""
        return [call_of(each) if isinstance(each, tuple) else each for each in tuple(self.noted)]


def call_of(note: Note, in_place: frozenset[str] = frozenset(), *, buckets: bool = False) -> Call:
    """Return the call that was noted.

    Args:
        note: the note.
        in_place: modules whose calls of C++ wait for what they begin.
        buckets: asynchronous calls in a backward pass are DDP's, which its end waits for.
    """
    backends, number, op, now, size, asynchronous, in_backward, origin, is_main, form, _ = note
    host = is_main and backends.host_waits
    waits = origin in in_place
    call = Call(op, now, size, 1, host and (not asynchronous or waits), group=backends.group)
    call.number, call.expected, call.estimated, call.form = number, False, True, form
    call.origin = origin if host and waits else ""
    call.deferred = host and asynchronous and in_backward and (buckets or origin == AUTOGRAD)
    return call
