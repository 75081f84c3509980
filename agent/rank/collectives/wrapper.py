"""Observation of collectives where torch's process groups have no hooks.

Python calls a group through the methods of `ProcessGroup`, which are wrapped here. DDP's
C++ code does not: it gets a stand-in, a Python subclass that passes every call on to
the group itself. No collective uses the stand-in's own base class: torch calls that under the
interpreter lock, for which a thread of gloo may wait while it holds the lock of its queue.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from ddptop.agent.rank.collectives.backends import Backends
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.hooks.around import replace

if TYPE_CHECKING:
    from ddptop.agent.rank.collectives.timing import Collectives

WRAPPER: Final = "process-group wrapper"
FUNCTIONS: Final = "torch.distributed functions only"
"""The mechanism where DDP's own calls are not observed."""

_METHODS: Final = {
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce_coalesced", 0),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "allgather": ("all_gather", 1),
    "allgather_coalesced": ("all_gather_coalesced", 1),
    "_allgather_base": ("all_gather_into_tensor", 1),
    "all_gather_single": ("all_gather_into_tensor", 1),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", 1),
    "all_gather_single_coalesced": ("all_gather_into_tensor_coalesced", 1),
    "reduce_scatter": ("reduce_scatter", 1),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 1),
    "reduce_scatter_single": ("reduce_scatter_tensor", 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", 1),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced", 1),
    "alltoall": ("all_to_all", 1),
    "alltoall_base": ("all_to_all_single", 1),
    "all_to_all_single": ("all_to_all_single", 1),
    "gather": ("gather", 1),
    "scatter": ("scatter", 1),
    "send": ("send", 0),
    "recv": ("recv", 0),
    "recv_anysource": ("recv", 0),
    "barrier": ("barrier", None),
}
"""By method of a process group: our name of the operation, and the index of its input among the arguments."""


def install(torch: Any, collectives: Collectives, faults: Faults) -> str | None:
    """Observe the collectives of all groups; return the mechanism's name, None where none can be observed."""
    distributed = torch.distributed
    present = [name for name in _METHODS if hasattr(distributed.ProcessGroup, name)]
    if not present:
        return None
    for name in present:
        _wrap(torch, name, collectives, faults)
    stand_ins = _StandIns(torch, present)
    if not stand_ins.are_heard():
        return FUNCTIONS
    for name in ("Reducer", "_broadcast_coalesced"):
        replace(distributed, name, stand_ins.around(getattr(distributed, name), collectives))
    return WRAPPER


def _wrap(torch: Any, name: str, collectives: Collectives, faults: Faults) -> None:
    """Report every call of a method of `ProcessGroup`."""
    original = getattr(torch.distributed.ProcessGroup, name)
    op, position = _METHODS[name]
    known: weakref.WeakKeyDictionary[Any, Backends] = weakref.WeakKeyDictionary()
    entered: dict[int, Any] = {}

    def before(group: Any, args: tuple[Any, ...]) -> None:
        now = collectives.now()
        backends = known.get(group)
        if backends is None:
            backends = known[group] = Backends(torch, group)
        tensors = _tensors(torch, args[position]) if position is not None and len(args) > position else []
        is_asynchronous = bool(getattr(args[-1], "asyncOp", True)) if args else True
        origin = _origin() if is_asynchronous else ""
        entered[threading.get_ident()] = collectives.begin(
            op, tensors, backends, now, blocking=not is_asynchronous, origin=origin
        )

    def after(work: Any) -> None:
        call = entered.pop(threading.get_ident(), None)
        if call is not None:
            collectives.end(call, work)

    after_guarded = faults.guard(after)

    @functools.wraps(original)
    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        if collectives.is_aside:
            return original(group, *args, **kwargs)
        try:
            before(group, args)
        except Exception as error:
            collectives.missed(error)
        work = None
        try:
            work = original(group, *args, **kwargs)
        finally:
            after_guarded(work)
        return work

    replace(torch.distributed.ProcessGroup, name, method)


def _tensors(torch: Any, argument: Any) -> list[Any]:
    if isinstance(argument, torch.Tensor):
        return [argument]
    if isinstance(argument, (list, tuple)):
        return [tensor for item in argument for tensor in _tensors(torch, item)]
    return []


def _origin() -> str:
    """Return the module whose call of C++ reached a stand-in; empty for a call from Python."""
    # The frames are this function, `before`, `method`, and the stand-in's method where there is one.
    try:
        frame = sys._getframe(3)
        is_stand_in = frame.f_code is _StandIns.passing_on
        return str(sys._getframe(4).f_globals.get("__name__", "")) if is_stand_in else ""
    except ValueError:
        return ""


class _StandIns:
    """Python process groups that pass every call on to the group in whose place they are used."""

    passing_on: Any = None
    """Code of the methods that pass calls on."""

    def __init__(self, torch: Any, names: list[str]) -> None:
        self._torch = torch
        self._plain = torch.distributed.ProcessGroup
        self._has_default = hasattr(self._plain, "_set_default_backend")
        members: dict[str, Any] = {name: _passing_on(name) for name in names}
        if not self._has_default:
            # Torch 2.4 asks the group itself for the name of its backend.
            members["getBackendName"] = lambda stand_in: stand_in.stands_for.name()
        self._class = type("ProcessGroup", (self._plain,), members)

    def are_heard(self) -> bool:
        """Say whether C++ calls the methods of a stand-in, by a call without communication."""
        torch = self._torch
        heard = []

        class Echo:
            def broadcast(self, tensors: list[Any], *_: Any) -> Any:
                heard.append(len(tensors))
                future = torch.futures.Future()
                future.set_result(tensors)
                return torch._C._distributed_c10d._create_work_from_future(future)

        try:
            stand_in = self._class(0, 1)
            stand_in.stands_for = Echo()
            torch.distributed._broadcast_coalesced(stand_in, [torch.zeros(1, device="cpu")], 1, 0)
        except (AttributeError, RuntimeError, TypeError):
            return False
        return bool(heard)

    def around(self, function: Any, collectives: Collectives) -> Any:
        """Return a function that calls `function` with stand-ins in place of process groups."""

        @functools.wraps(function, updated=())
        def called(*args: Any, **kwargs: Any) -> Any:
            standing = []

            def swap(argument: Any) -> Any:
                if not isinstance(argument, self._plain):
                    return argument
                stand_in = self._stand_in(argument)
                if stand_in is None:
                    collectives.lower(FUNCTIONS)
                    return argument
                standing.append(stand_in)
                return stand_in

            args = tuple(swap(argument) for argument in args)
            result = function(*args, **{name: swap(argument) for name, argument in kwargs.items()})
            if result is not None:
                # C++ refers to the group, but not to its Python part, without which no call is passed on.
                weakref.finalize(result, standing.clear).atexit = False
            return result

        return called

    def _stand_in(self, group: Any) -> Any:
        """Return a stand-in, None for a group of the script's own class or where making one fails."""
        if type(group) is not self._plain:
            return None
        kinds = self._torch.distributed.Backend.backend_type_map
        try:
            stand_in = self._class(group.rank(), group.size())
            for device in group._device_types:
                backend = group._get_backend(device)
                stand_in._register_backend(device, kinds[str(backend.name()).lower()], backend)
            if self._has_default:
                stand_in._set_default_backend(kinds[str(group.name()).lower()])
            stand_in._set_group_name(group.group_name)
        except (AttributeError, KeyError, RuntimeError, TypeError):
            return None
        stand_in.stands_for = group
        return stand_in


def _passing_on(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.stands_for, name)(*args, **kwargs)

    _StandIns.passing_on = method.__code__
    return method
