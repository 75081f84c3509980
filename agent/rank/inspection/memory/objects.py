"""All objects of this process by kind, without running any code of theirs.

Python's collector knows all containers and tensors; arrays of NumPy and bytes it does not, which are found as referents
of containers.  Types are compared by identity: `isinstance` asks an object for its `__class__`, which may run code.
Tensors whose class has a `__torch_dispatch__` of its own wrap others, which are counted.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MethodDescriptorType
from typing import Any, Final, NamedTuple

TENSOR: Final = "tensor"
ARRAY: Final = "array"
OBJECT: Final = "object"
_CHUNK: Final = 1_000
"""Objects whose referents are looked at together: a list of all of them takes much memory."""
_LONG: Final = 4_096
"""Characters of a text that is counted; shorter ones are too many, and shared."""
_PACKED: Final = 4
"""Tuples within tuples that are looked into, where the collector does not know them."""
_MOST_PACKED: Final = 1_000_000
_NEWEST: Final = 20_000
"""Newest objects whose origin is looked up at most."""
_SIZED: Final = frozenset(map(id, (list, dict, set, tuple, frozenset, deque)))
"""Types whose size is asked for: those of the script might run code of its own."""
_OWN_MODULES: Final = ("ddptop.agent.", "torch.storage")
"""Modules of types that are not counted: a census makes objects of its own of them, also one for each storage."""
_HEAD: Final = 16
"""Bytes of the collector for each object."""


class Kind(NamedTuple):
    """The fields are those of `wire.ObjectKind`."""

    kind: str
    type: str
    dtype: str = ""
    shape: tuple[int | None, ...] = ()
    device: str = ""


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of objects, and their bytes."""

    count: int
    bytes: int

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.count + other.count, self.bytes + other.bytes)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.count - other.count, self.bytes - other.bytes)


class Objects:
    """The objects that live at this moment; it holds them, so that it has to go before the script goes on."""

    def __init__(
        self, variables: Iterable[object] = (), classes: Iterable[type] = (), own: Collection[object] = ()
    ) -> None:
        """Gather them.

        Here little is allocated, because each allocation may be recorded.  The collector must not run meanwhile, since
        it would run finalizers.

        Args:
            variables: values that no object holds.
            classes: those of tensors in `traceable`.
            own: objects of the census, which are not counted.
        """
        self._own = own
        torch: Any = sys.modules.get("torch")
        numpy: Any = sys.modules.get("numpy")
        self._torch, self._tensor = torch, getattr(torch, "Tensor", None)
        self._array = getattr(numpy, "ndarray", None)
        # The newest come last. The young ones are asked for first, so that no list of these is among them.
        young = gc.get_objects(0)
        self._all = gc.get_objects(2) + gc.get_objects(1) + young
        self._packed: list[tuple[list[object], list[object]]] = []
        """Containers that the collector does not know, and the arrays, bytes and texts that are in some of them."""
        self._arrays, self._texts = self._untracked(self._array, list(variables))
        tensors = [each for kind in classes for each in self._all if type(each) is kind]
        newest = self._all[: -_NEWEST - 1 : -1]
        self.traceable: tuple[list[object], ...] = (tensors, self._arrays, self._texts, newest)
        """Objects whose origin may be recorded: tensors, arrays, bytes and long texts, and the newest of all others."""
        self.classes: tuple[type, ...] = ()
        """The classes of tensors, once they are counted."""
        self._memories: dict[Kind, list[object]] = {}
        """A tensor or array for each memory of such, by kind."""
        self.amounts: dict[Kind, Amount] = {}
        self._named: dict[Kind, set[int]] = {}
        """By kind of objects, the addresses of the types of this name."""

    def count(self) -> None:
        """Count them by kind."""
        left_out = frozenset(map(id, self._own))
        self._all = [each for each in self._all if id(each) not in left_out]
        # By address, because a class of the script's may have a hash of its own.
        counts = Counter(map(id, map(type, self._all)))
        types = {id(kind): kind for kind in map(type, self._all)}
        tensor, array = self._tensor, self._array
        of_tensors = {address for address, kind in types.items() if tensor is not None and _is_tensor(kind, tensor)}
        of_arrays = {address for address, kind in types.items() if array is not None and issubclass(kind, array)}
        self.classes = tuple(types[address] for address in of_tensors)
        if of_tensors:
            self._count_tensors(self._torch, [each for each in self._all if id(type(each)) in of_tensors])
        if array is not None:
            self._count_arrays(array, [*self._arrays, *(each for each in self._all if id(type(each)) in of_arrays)])
        left = {address: kind for address, kind in types.items() if address not in of_tensors | of_arrays}
        self._count_objects(left, counts)
        for kind in (bytes, bytearray, str):
            if sizes := [sys.getsizeof(each) for each in self._texts if type(each) is kind]:
                self._add_type(kind, Amount(len(sizes), sum(sizes)))

    def close(self) -> None:
        """Let go of all objects, among which is this one, so that nothing else would."""
        self._own, self._all, self._arrays, self._texts, self._packed = (), [], [], [], []
        self.traceable, self._memories = (), {}

    def of_kind(self, kind: Kind) -> Iterator[object]:
        """Return the objects of a kind, one for each memory of tensors and arrays."""
        if kind.kind != OBJECT:
            return iter(self._memories.get(kind, ()))
        types = self._named.get(kind, ())
        return (each for some in (self._all, self._texts) for each in some if id(type(each)) in types)

    def types(self, kind: Kind) -> Set[int]:
        """Return the addresses of the types of a kind of Python objects."""
        return self._named.get(kind, frozenset())

    def addresses(self) -> frozenset[int]:
        """Return the addresses of all objects that the collector knows."""
        return frozenset(map(id, self._all))

    def parents(self) -> Mapping[int, object]:
        """Return the containers that the collector does not know, by the addresses of the objects in them."""
        found: dict[int, object] = {}
        for some, inside in self._packed:
            held = set(map(id, inside))
            found |= {id(each): parent for parent in some for each in gc.get_referents(parent) if id(each) in held}
        return found

    def _add_type(self, kind: type, amount: Amount) -> None:
        key = Kind(OBJECT, type_name(kind))
        self._named.setdefault(key, set()).add(id(kind))
        self._add(key, amount)

    def _add(self, kind: Kind, amount: Amount) -> None:
        self.amounts[kind] = self.amounts.get(kind, Amount(0, 0)) + amount

    def _count_tensors(self, torch: Any, tensors: Iterable[Any]) -> None:
        found: dict[int, tuple[int, Any, int]] = {}
        # Functions of a subclass, and modes that are on at this moment, are the script's.
        with torch._C.DisableTorchFunction():
            for each in tensors:
                try:
                    storage = each.untyped_storage()
                    size, number, key = storage.nbytes(), each.numel(), storage._cdata
                    if size and (key not in found or number > found[key][0]) and storage.device.type != "meta":
                        found[key] = number, each, size
                except Exception as error:
                    # A sparse tensor has no storage of its own: its parts are tensors too. Torch's errors may live on,
                    # in a cycle, and with a trace all that the functions on it hold.
                    error.__traceback__ = None
            for _, each, size in found.values():
                dtype = str(each.dtype).removeprefix("torch.")
                kind = Kind(TENSOR, type_name(type(each)), dtype, tuple(each.shape), str(each.device))
                self._memories.setdefault(kind, []).append(each)
                self._add(kind, Amount(1, size))

    def _count_arrays(self, array: Any, arrays: Iterable[Any]) -> None:
        roots: dict[int, tuple[Any, Any]] = {}
        for each in arrays:
            root = _root(array, each)
            if root is not None:
                roots.setdefault(id(root), (root, each))
        for root, each in roots.values():
            size = array.nbytes.__get__(root)
            if size:
                dtype, shape = str(array.dtype.__get__(root)), array.shape.__get__(root)
                kind = Kind(ARRAY, type_name(type(root)), dtype, shape, "cpu")
                # What is held is the view.
                self._memories.setdefault(kind, []).append(each)
                self._add(kind, Amount(1, size))

    def _untracked(self, array: Any, variables: list[object]) -> tuple[list[Any], list[Any]]:
        """Return the arrays, bytes and long texts that the collector does not know, each once."""
        found: list[Any] = []
        packed: list[Any] = []
        is_tracked = gc.is_tracked

        def sort(referents: list[Any]) -> list[Any]:
            # Without a set of types: a class of the script's may have a hash of its own.
            nonlocal packed
            packed += [
                each for each in referents if ((kind := type(each)) is tuple or kind is dict) and not is_tracked(each)
            ]
            return [
                each
                for each in referents
                if (kind := type(each)) is array
                or kind is bytes
                or kind is bytearray
                or (kind is str and len(each) >= _LONG)
            ]

        found += sort(variables)
        # The many that hold no data of the script.
        holders = [
            each
            for each in self._all
            if (kind := type(each)) is not FunctionType
            and kind is not BuiltinFunctionType
            and kind is not GetSetDescriptorType
            and kind is not MethodDescriptorType
        ]
        for some in _chunks(holders):
            found += sort(gc.get_referents(*some))
        # Tuples and dictionaries of nothing but arrays, numbers and texts the collector does not know either.
        for _ in range(_PACKED):
            level, packed = packed[:_MOST_PACKED], []
            for some in _chunks(level):
                if not (inside := sort(gc.get_referents(*some))):
                    continue
                found += inside
                self._packed.append((some, inside))
        once = {id(each): each for each in found}.values()
        return [each for each in once if type(each) is array], [each for each in once if type(each) is not array]

    def _count_objects(self, types: Mapping[int, type], counts: Counter[int]) -> None:
        sizes: Counter[int] = Counter()
        for each in self._all:
            if (type_id := id(type(each))) in _SIZED:
                sizes[type_id] += sys.getsizeof(each)
        for address, kind in types.items():
            if str(_attributes(kind).get("__module__")).startswith(_OWN_MODULES):
                continue
            size = sizes[address] or counts[address] * (_HEAD + _SIZE.__get__(kind))
            self._add_type(kind, Amount(counts[address], size))


def _chunks(some: list[Any]) -> Iterator[list[Any]]:
    return (some[at : at + _CHUNK] for at in range(0, len(some), _CHUNK))


def _is_tensor(kind: type, tensor: type) -> bool:
    """Say whether a class is one of tensors with memory of their own."""
    if not issubclass(kind, tensor):
        return False
    # The first class that has it.
    first = next((base for base in _bases(kind) if "__torch_dispatch__" in _attributes(base)), tensor)
    return any(first is base for base in _bases(tensor))


def _root(array: Any, each: Any) -> Any:
    """Return the array that owns the memory of another one; None where that is no array's."""
    while True:
        base = array.base.__get__(each)
        if base is None:
            return each
        if not issubclass(type(base), array):
            return None
        each = base


# Of the class `type` itself: a class of the script's may have others of its own.
_NAME: Final = type.__dict__["__qualname__"]
_MRO: Final = type.__dict__["__mro__"]
_SIZE: Final = type.__dict__["__basicsize__"]
_DICT: Final = type.__dict__["__dict__"]


def type_name(kind: type) -> str:
    """Return the name of a type, without the functions around it."""
    return str(_NAME.__get__(kind)).rpartition("<locals>.")[2]


def _bases(kind: type) -> tuple[type, ...]:
    bases: tuple[type, ...] = _MRO.__get__(kind)
    return bases


def _attributes(kind: type) -> Mapping[str, object]:
    found: Mapping[str, object] = _DICT.__get__(kind)
    return found


def attribute(kind: type, name: str) -> object:
    """Return an attribute of a class or its bases as it stands there; None where there is none."""
    return next((found for base in _bases(kind) if (found := _attributes(base).get(name)) is not None), None)


def members(kind: type) -> Iterator[tuple[str, object]]:
    """Return all attributes of a class and its bases as they stand there."""
    for base in _bases(kind):
        yield from _attributes(base).items()
