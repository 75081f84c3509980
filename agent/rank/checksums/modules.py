"""The tensors of a rank that are compared with those of other ranks: of its DDP modules, and of its optimizers.

DDP keeps the trained parameters of a module the same on all ranks of its process group.  Parameters of an optimizer
that are in no such module may be kept the same by the script itself, or be meant to differ; they are known by the
observer.

Modules and optimizers are referred to weakly, and a tensor not at all: it is looked up by its name each time. torch
refuses to swap a tensor that has weak references (`torch.utils.swap_tensors`, in `load_state_dict` and `Module.to`).
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from ddptop.agent.rank.checksums.sums import is_readable
from ddptop.agent.text import shorten
from ddptop.agent.wire import MOST_MODULES, MOST_SUMS

_LONGEST_NAME: Final = 100
_MOST_OF_A_KIND: Final = MOST_MODULES // 2
"""DDP modules, and optimizers with parameters in none, that are compared at most."""


Find = Callable[[], Mapping[str, Any]]
"""Returns the tensors of a module or of an optimizer as they are now, by name; none once it is gone."""


class Module:
    """The tensors that are compared together."""

    def __init__(
        self,
        torch: Any,
        named: Iterable[tuple[str, Any]],
        find: Find,
        room: int,
        *,
        group: str,
        number: int,
        members: int,
    ) -> None:
        """Take the first `room` of the named tensors that can be compared, and count the others."""
        self.group = group
        """Name of the process group over which DDP keeps them the same; empty where none does."""
        self.number = number
        self.members = members
        """Ranks of the group, 0 without one."""
        self.steps = 0
        """Optimizer steps that these parameters have made."""
        self.names: list[str] = []
        self.sharded = 0
        self.left_out = 0
        self._torch = torch
        self._find = find
        self._keys: list[str] = []
        """The names, uncut."""
        layout = hashlib.blake2b(digest_size=16)
        for name, tensor in named:
            if _is_sharded(tensor):
                self.sharded += 1
            elif len(self.names) >= room or not is_readable(torch, tensor):
                self.left_out += 1
            else:
                self.names.append(shorten(name, _LONGEST_NAME))
                self._keys.append(name)
                told = (name, tuple(tensor.shape), str(tensor.dtype), tensor.device.type)
                layout.update(repr(told).encode(errors="replace"))
        self.layout = layout.hexdigest()

    def tensors(self) -> list[Any] | None:
        """Return the tensors, None where one of them is gone, or can no longer be compared."""
        now = self._find()
        found = [now.get(key) for key in self._keys]
        return found if all(is_readable(self._torch, tensor) for tensor in found) else None


class _Plan:
    """The modules whose parameters an optimizer changes."""

    def __init__(self, version: int, wrapped: list[Module], own: Module | None) -> None:
        self.version = version
        self.own = own
        """Those of its parameters that are in no DDP module."""
        self.modules = wrapped if own is None else [*wrapped, own]


class Modules:
    """All that is compared of a rank; for use from the training thread."""

    def __init__(self, torch: Any, buffers: tuple[str, ...] = ()) -> None:
        """Compare of the buffers those whose names match one of these patterns."""
        self._torch = torch
        self._buffers = buffers
        self._wrapped: list[Module] = []
        """Of the DDP modules."""
        self._counts: dict[str, int] = {}
        """By group, the modules that were made in it; by the empty name, those of optimizers."""
        self._version = 0
        """Changes with the DDP modules."""
        self._plans: weakref.WeakKeyDictionary[Any, _Plan] = weakref.WeakKeyDictionary()
        self._last: tuple[Callable[[], Any], _Plan | None] = (lambda: None), None
        """The optimizer that has made a step last, which mostly makes the next one."""

    def wrap(self, module: Any) -> None:
        """Note a DDP module that was just made."""
        self._wrapped = [each for each in self._wrapped if each.tensors() is not None]
        if len(self._wrapped) < _MOST_OF_A_KIND:
            ignored = set(getattr(module, "parameters_to_ignore", ()))
            named = _of_module(module.module, ignored, self._buffers)
            group = module.process_group
            name = shorten(str(group.group_name), _LONGEST_NAME)
            self._wrapped.append(self._made(named, _finding(module.module, _all_of_module), name, group.size()))
            self._version += 1

    def changed(self, optimizer: Any) -> list[Module]:
        """Return the modules whose parameters this optimizer changes."""
        last, plan = self._last
        if plan is not None and last() is optimizer and plan.version == self._version:
            return plan.modules
        plan = self._plans.get(optimizer)
        if plan is None or plan.version != self._version:
            self._plans.pop(optimizer, None)
            plan = self._plans[optimizer] = self._planned(optimizer)
        self._last = weakref.ref(optimizer), plan
        return plan.modules

    def all(self) -> list[Module]:
        """Return all modules that live."""
        own = [plan.own for plan in self._plans.values() if plan.own is not None]
        return [each for each in (*self._wrapped, *own) if each.tensors() is not None]

    def _planned(self, optimizer: Any) -> _Plan:
        named = list(_of_optimizer(optimizer))
        ids = {id(parameter) for _, parameter in named}
        wrapped, inside = [], set()
        for module in self._wrapped:
            held = set(map(id, module.tensors() or ()))
            if not held.isdisjoint(ids):
                wrapped.append(module)
                inside |= held
        own = [(name, parameter) for name, parameter in named if id(parameter) not in inside]
        has_room = len(self.all()) - len(self._wrapped) < _MOST_OF_A_KIND
        find = _finding(optimizer, _of_optimizer)
        return _Plan(self._version, wrapped, self._made(own, find, "", 0) if own and has_room else None)

    def _made(self, named: Iterable[tuple[str, Any]], find: Find, group: str, members: int) -> Module:
        number = self._counts.get(group, 0)
        self._counts[group] = number + 1
        room = MOST_SUMS - sum(len(each.names) for each in self.all())
        return Module(self._torch, named, find, room, group=group, number=number, members=members)


def _finding(owner: Any, named: Callable[[Any], Iterable[tuple[str, Any]]]) -> Find:
    """Return what looks up the tensors of a module or of an optimizer, without keeping it alive."""
    held = weakref.ref(owner)
    return lambda: {} if (found := held()) is None else dict(named(found))


def _all_of_module(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield every tensor of a module: a parameter may be frozen after it was chosen."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def _of_module(module: Any, ignored: set[str], patterns: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield what DDP keeps the same of a module: its trained parameters, and the chosen buffers."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and name not in ignored:
            yield name, parameter
    if patterns:
        for name, buffer in module.named_buffers():
            if name not in ignored and any(fnmatchcase(name, pattern) for pattern in patterns):
                yield name, buffer


def _of_optimizer(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of an optimizer, with a description where it knows no name."""
    kind, number, told = type(optimizer).__name__, 0, set[str]()
    for group in optimizer.param_groups:
        names = group.get("param_names") or ()
        for index, parameter in enumerate(group["params"]):
            number += 1
            shape = "×".join(map(str, parameter.shape)) or "1"
            name = names[index] if index < len(names) else ""
            if not name or name in told:
                name = f"parameter {number} of {kind} ({shape})"
            told.add(name)
            yield name, parameter


def _is_sharded(tensor: Any) -> bool:
    """Say whether this is a part of a parameter: a DTensor, which has a mesh, or a flat parameter of FSDP."""
    return hasattr(tensor, "device_mesh") or hasattr(tensor, "_is_flat_param")
