"""The collectives of a process group, counted on this rank: ranks that made the same calls have the same count.

In a step that is only counted, a call is noted as a plain tuple, which costs the least; a `Call` is made of it where
somebody asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from ddptop.agent.rank.collectives.backends import Backends

from ddptop.agent.rank.records.stamps import Call

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


Note: TypeAlias = "tuple[Backends, int, str, int, int, bool, bool, str, bool, int]"
"""A call in a step that is only counted: the backends of its group, its number there, the operation,
when it was called, its bytes, whether it was asynchronous, whether in a backward pass, the module that has called C++
where that was looked up, whether by the training thread or for its backward pass, and how many steps were complete."""


class Counted:
    """The calls of one group so far; those to a single other rank are not counted."""

    __slots__ = ("calls", "group", "noted")

    def __init__(self, group: Callable[[], Any]) -> None:
        """Begin to count; `group` returns the process group, None once it is gone."""
        self.group = group
        self.calls = 0
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
    backends, number, op, now, size, asynchronous, in_backward, origin, is_main, _ = note
    host = is_main and backends.host_waits
    waits = origin in in_place
    call = Call(op, now, size, 1, host and (not asynchronous or waits), group=backends.group)
    call.number, call.expected, call.estimated = number, False, True
    call.origin = origin if host and waits else ""
    call.deferred = host and asynchronous and in_backward and (buckets or origin == AUTOGRAD)
    return call
