"""The time for which the training thread waits for collectives, and the end of calls that only a wait shows.

This module wraps `Work.wait`, the waits of functional collectives, and the methods of a process group
whose works have no future.  A wait only writes stamps; works are referred to weakly.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from ddptop.agent.rank.collectives.backends import Backends
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.hooks.around import replace
from ddptop.agent.rank.hooks.imports import after_import
from ddptop.agent.rank.records.stamps import Call, Stamps

_WITHOUT_FUTURE: Final = (
    "send",
    "recv",
    "recv_anysource",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "_reduce_scatter_base",
)
"""Methods of a process group whose works have no future on gloo."""
_UNHOOKED: Final = ("monitored_barrier",)
"""Methods of a process group that call no hooks; they return at completion."""
_FUNCTIONAL: Final = "torch.distributed._functional_collectives"
_FUNCTIONAL_WAITS: Final = ("wait_tensor", "wait_tensors")
_DEPTH: Final = 20
"""Frames of a stack, the innermost first, among which one that waits is looked for."""


class Waits:
    """Stamps the waits of the training thread, and completes calls whose end only a wait shows."""

    def __init__(self, stamps: Stamps, faults: Faults, flying: dict[int, Call], begin: Callable[..., Call]) -> None:
        self._stamps = stamps
        self._faults = faults
        self._flying = flying
        """Calls in flight, by id: shared with `timing.Collectives`."""
        self._begin = begin
        self.is_aside = False
        """True while the waits are not the training's."""
        self._watches = False
        self.without_future: Call | None = None
        """The last call whose work has no future (send, recv, reduce_scatter of gloo)."""
        self._works: dict[int, tuple[weakref.ref[Any], Call]] = {}
        """Such works, until they are waited for or freed; weak references, because works refer to the tensors."""
        self.functional = False
        """A functional collective was waited for."""
        self._codes: set[Any] = set()
        """Code of the functions that wait, by which they are found on a stack."""

    def watch(self, torch: Any) -> None:
        """Wrap the functions that wait, once."""
        if self._watches:
            return
        self._watches = True
        distributed = torch.distributed
        self._time_wait(torch, distributed.Work, "wait")
        after_import(_FUNCTIONAL, functools.partial(self._watch_functional, torch))
        for name in _WITHOUT_FUTURE:
            if hasattr(distributed.ProcessGroup, name):
                self._refer_weakly(distributed.ProcessGroup, name)
        for name in _UNHOOKED:
            if hasattr(distributed.ProcessGroup, name):
                self._time_whole(torch, name)

    def _watch_functional(self, torch: Any, functional: Any) -> None:
        """Time the waits of functional collectives, which do not call `Work.wait`."""
        for name in _FUNCTIONAL_WAITS:
            if hasattr(functional, name):
                self._time_wait(torch, functional, name, functional=True)

    def _time_wait(self, torch: Any, owner: Any, name: str, *, functional: bool = False) -> None:
        original = getattr(owner, name)
        stamps, ident, compiling = self._stamps, threading.get_ident, torch.compiler.is_compiling
        clock = stamps.clock

        @functools.wraps(original)
        def wait(awaited: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_aside or compiling() or ident() != stamps.thread:
                return original(awaited, *args, **kwargs)
            if functional:
                self.functional = True
            begin = clock()
            try:
                return original(awaited, *args, **kwargs)
            finally:
                self._waited(awaited, begin, clock())

        self._codes.add(wait.__code__)  # type: ignore[attr-defined]  # `wraps` hides from mypy that it is a function
        replace(owner, name, wait)

    def awaited(self, frame: FrameType | None) -> Any:
        """Return the work that the thread of a stack waits for, None where it waits for none.

        Args:
            frame: the innermost frame of the training thread.
        """
        for _ in range(_DEPTH):
            if frame is None:
                return None
            if frame.f_code in self._codes:
                return frame.f_locals.get("awaited")
            frame = frame.f_back
        return None

    def works(self) -> dict[int, Any]:
        """Return the works without future that are still referred to, by the id of their call."""
        found = ((call, reference()) for reference, call in tuple(self._works.values()))
        return {id(call): work for call, work in found if work is not None}

    def _time_whole(self, torch: Any, name: str) -> None:
        """Time a method of a process group that blocks, calls no hook and returns no work."""
        owner = torch.distributed.ProcessGroup
        original = getattr(owner, name)

        entered: dict[int, Call] = {}
        """By thread."""

        def enter(group: Any) -> None:
            backends, now = Backends(torch, group), self._stamps.clock()
            entered[threading.get_ident()] = self._begin(name, [], backends, now, blocking=True, origin="")

        def leave() -> None:
            call = entered.pop(threading.get_ident(), None)
            if call is not None:
                call.done, call.estimated = self._stamps.clock(), False
                self._flying.pop(id(call), None)

        before, after = self._faults.guard(enter), self._faults.guard(leave)

        @functools.wraps(original)
        def method(group: Any, *args: Any, **kwargs: Any) -> Any:
            before(group)
            try:
                return original(group, *args, **kwargs)
            finally:
                after()

        replace(owner, name, method)

    def _refer_weakly(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            self.without_future = None
            work = original(*args, **kwargs)
            call, self.without_future = self.without_future, None
            if call is not None and work is not None:
                self._await(work, call)
            return work

        replace(owner, name, method)

    def _await(self, work: Any, call: Call) -> None:
        key = id(work)

        def gone(_: object) -> None:
            self._works.pop(key, None)
            self._flying.pop(id(call), None)

        self._flying[id(call)] = call
        self._works[key] = (weakref.ref(work, gone), call)

    def _waited(self, work: Any, begin: int, end: int) -> None:
        self._stamps.waited(begin, end)
        found = self._works.pop(id(work), None) if self._works else None
        if found is not None:
            call = found[1]
            call.done, call.estimated = end, True
            self._flying.pop(id(call), None)
