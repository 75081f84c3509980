"""All objects of this process by kind, without running any code of theirs, in a time that is given.

Python's collector knows all containers and tensors; arrays of NumPy and bytes it does not, which are found as referents
of containers.  Types are compared by identity: `isinstance` asks an object for its `__class__`, which may run code.
Tensors whose class has a `__torch_dispatch__` of its own wrap others, which are counted.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import compress
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType
from typing import Any, Final, NamedTuple

from ddptop.agent.text import plural

TENSOR: Final = "tensor"
ARRAY: Final = "array"
OBJECT: Final = "object"
_CHUNK: Final = 1_000
"""Objects that are looked at together, before the clock is: a list of all their referents takes much memory."""
_TENSORS: Final = 100
"""Tensors that are, each of which takes as long as many other objects."""
_LARGE: Final = 64 << 20
"""Bytes of a container that is not looked into: all that it holds would be in one list."""
_LONG: Final = 4_096
"""Characters of a text that is counted; shorter ones are too many, and shared."""
_PACKED: Final = 4
"""Tuples within tuples that are looked into, where the collector does not know them."""
_MOST_PACKED: Final = 1_000_000
_NEWEST: Final = 20_000
"""Newest objects whose origin is looked up at most."""
_LISTED_NS: Final = 30
"""Time that the collector takes for each object where it lists them, about."""
_COUNT: Final = 6
"""Times as long as the list of all objects takes their count by type."""

address_of: Final = object.__hash__
"""The address of an object, in a form of its own. Each call of `id` is an event for the hooks of `sys.addaudithook`,
which many libraries have: of millions of objects it takes seconds."""
_SIZED: Final = frozenset(map(address_of, (list, dict, set, tuple, frozenset, deque)))
"""Types whose size is asked for: those of the script might run code of its own."""
_OWN_MODULES: Final = ("ddptop.agent.", "torch.storage")
"""Modules of types that are not counted: a census makes objects of its own of them, also one for each storage."""
_HEAD: Final = 16
"""Bytes of the collector for each object."""


class Time:
    """The time for which the training thread may be held, or a part of it."""

    def __init__(self, seconds: float, check: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        """Begin now; `check` raises where nobody waits for the outcome any more."""
        self.check = check
        self._clock = clock
        self.until = clock() + seconds
        self.is_up = False
        """True once something was left out because there was no time for it."""

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.until - self._clock()

    def part(self, seconds: float) -> Time:
        """Return a part of what is left, of so many seconds at most."""
        return Time(min(seconds, self.left_s), self.check, self._clock)

    def chunks(self, some: list[Any], size: int = _CHUNK) -> Iterator[list[Any]]:
        """Yield pieces of a list, its last ones first, as long as there is time.

        Raises:
            Unanswered: nobody waits for the outcome any more.
        """
        for end in range(len(some), 0, -size):
            if not self.has(0.0):
                return
            yield some[max(0, end - size) : end]

    def has(self, seconds: float) -> bool:
        """Say whether more than so many seconds are left; raises `Unanswered` as above."""
        if not self.is_up:
            self.check()
            self.is_up = self.left_s <= seconds
        return not self.is_up


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


def level_of(kind: Kind) -> int:
    """Return to which level of `Objects` a count has to come that this kind is counted whole."""
    if kind.kind == ARRAY or kind.type in ("bytes", "bytearray", "str"):
        return 3
    return 1 if kind.kind == TENSOR and kind.type in ("Tensor", "Parameter") else 2


class Objects:
    """The objects that live at this moment; it holds them, so that it has to go before the script goes on."""

    def __init__(
        self,
        within: Time,
        variables: Iterable[object] = (),
        classes: Sequence[type] = (),
        own: Collection[object] = (),
    ) -> None:
        """Gather them.

        Here little is allocated, because each allocation may be recorded.  The collector must not run meanwhile, since
        it would run finalizers.

        Args:
            within: the time for all that is done with them.
            variables: values that no object holds.
            classes: other ones of tensors than torch's own, for `traceable`.
            own: objects of the census, which are not counted.
        """
        self._within = within
        self._own = own
        torch: Any = sys.modules.get("torch")
        numpy: Any = sys.modules.get("numpy")
        self._torch, self._tensor = torch, getattr(torch, "Tensor", None)
        parameter = self._tensor if torch is None else torch.nn.Parameter
        self._array = getattr(numpy, "ndarray", None)
        began, all_blocks = time.monotonic(), sys.getallocatedblocks()
        # The newest come last. The young ones are asked for first, so that no list of these is among them.
        young = gc.get_objects(0)
        self._young = len(young)
        self.is_listed = all_blocks * _LISTED_NS < 1e9 * within.left_s / 2
        """False where the older ones are too many to be listed in this time."""
        self._all = [*(gc.get_objects(2) if self.is_listed else ()), *gc.get_objects(1), *young]
        self.number = len(self._all)
        self.list_s = time.monotonic() - began
        """Seconds that the list of them took; its end takes a part of that."""
        within.until -= self.list_s / 2
        self.looked = 0
        """Those that were counted by type."""
        self.level = 0
        """How far their count has come: to plain tensors, to all that the collector knows, to all; see `level_of`."""
        self._is_searched = False
        """All were looked into for what the collector does not know."""
        self.uncounted: Counter[str] = Counter()
        """Tensors whose memory torch does not say, by their layout."""
        self._packed: list[tuple[list[object], list[object]]] = []
        """Containers that the collector does not know, and the arrays, bytes and texts that are in some of them."""
        self._tensors = [
            each
            for some in (within.chunks(self._all) if self._tensor is not None else ())
            for each in some
            if (kind := type(each)) is self._tensor or kind is parameter
        ]
        """The plain ones."""
        pieces = within.chunks(self._all) if classes else ()
        others = [each for some in pieces for kind in classes for each in some if type(each) is kind]
        self._arrays, self._texts = self._untracked(list(variables))
        newest = self._all[: -_NEWEST - 1 : -1]
        self.traceable: tuple[list[object], ...] = (self._tensors, others, self._arrays, self._texts, newest)
        """Objects whose origin may be recorded: tensors, arrays, bytes and long texts, and the newest of all others."""
        self.classes: tuple[type, ...] = ()
        """The other classes of tensors, once they are counted."""
        self._memories: dict[Kind, list[object]] = {}
        """A tensor or array for each memory of such, by kind."""
        self._storages: set[int] = set()
        """Addresses of the memories that were counted."""
        self.amounts: dict[Kind, Amount] = {}
        self._named: dict[Kind, set[int]] = {}
        """By kind of objects, the addresses of the types of this name."""

    def count(self, part: float) -> None:
        """Count them by kind, tensors first, in a part of the time that is left."""
        tensor, array = self._tensor, self._array
        # By address, because a class of the script's may have a hash of its own.
        counts: Counter[int] = Counter()
        sizes: Counter[int] = Counter()
        types: dict[int, type] = {}
        of_tensors: set[int] = set()
        others: set[int] = set()
        of_arrays: set[int] = set()
        tensors: list[Any] = []
        arrays: list[Any] = []
        plain = frozenset(map(address_of, (tensor, self._torch.nn.Parameter))) if tensor is not None else frozenset()
        self._count_tensors(self._tensors)
        self.level = int(self.is_listed and not self._within.is_up)
        within = self._within.part(part * self._within.left_s)
        for some in within.chunks(self._all):
            self.looked += len(some)
            addresses = list(map(address_of, map(type, some)))
            present = set(addresses)
            if new := present - types.keys():
                met = {
                    address: kind for address, kind in zip(addresses, map(type, some), strict=True) if address in new
                }
                of_tensors |= {each for each, kind in met.items() if tensor is not None and _is_tensor(kind, tensor)}
                of_arrays |= {each for each, kind in met.items() if array is not None and issubclass(kind, array)}
                others, types = of_tensors - plain, types | met
            counts.update(addresses)
            for each, address in zip(some, addresses, strict=True):
                if address in _SIZED:
                    sizes[address] += sys.getsizeof(each)
            if not present.isdisjoint(others):
                tensors += compress(some, map(others.__contains__, addresses))
            if not present.isdisjoint(of_arrays):
                arrays += compress(some, map(of_arrays.__contains__, addresses))
        for each in self._own:
            if gc.is_tracked(each):
                counts[address_of(type(each))] -= 1
                sizes[address_of(type(each))] -= sys.getsizeof(each)
        self.classes = tuple(types[address] for address in others)
        self._count_tensors(tensors)
        if array is not None:
            self._count_arrays(array, [*self._arrays, *arrays])
        if self.level and not within.is_up and not self._within.is_up:
            self.level = 3 if self._is_searched else 2
        self._count_objects(
            {each: kind for each, kind in types.items() if each not in of_tensors | of_arrays}, counts, sizes
        )
        for kind in (bytes, bytearray, str):
            if of_texts := [sys.getsizeof(each) for each in self._texts if type(each) is kind]:
                self._add_type(kind, Amount(len(of_texts), sum(of_texts)))

    @property
    def remarks(self) -> Iterator[str]:
        """What of them was not counted, in sentences."""
        if not self.is_listed:
            yield "the older objects are too many to be listed in this time"
        if self.level < 2:
            so_far = "tensors and " if self.level else ""
            yield f"{so_far}{self.looked:,} of {plural(self.number, 'object')} were counted in this time"
        elif self.level < 3:
            yield f"{plural(self.number, 'object')} could not all be looked into for arrays and bytes in this time"
        if self.uncounted:
            each = ", ".join(f"{plural(number, 'tensor')} of {layout}" for layout, number in self.uncounted.items())
            yield f"torch does not say the memory of {each}"

    def close(self) -> None:
        """Let go of all objects, among which is this one, so that nothing else would."""
        self._own, self._all, self._arrays, self._texts, self._packed = (), [], [], [], []
        self.traceable, self._memories, self._tensors = (), {}, []

    def of_kind(self, kind: Kind) -> list[object]:
        """Return the tensors or arrays of a kind, one for each memory."""
        return self._memories.get(kind, [])

    def types(self, kind: Kind) -> Set[int]:
        """Return the addresses of the types of a kind of Python objects."""
        return self._named.get(kind, frozenset())

    def own_addresses(self) -> frozenset[int]:
        """Return the addresses of the containers that were made since they were gathered, which are the census's."""
        return frozenset(map(address_of, gc.get_objects(0)[self._young :]))

    def parents(self) -> Mapping[int, object]:
        """Return the containers that the collector does not know, by the addresses of the objects in them."""
        found: dict[int, object] = {}
        for pairs in self._within.chunks(self._packed, 1):
            for some, inside in pairs:
                held = set(map(address_of, inside))
                for parent in some:
                    found |= dict.fromkeys(held.intersection(map(address_of, gc.get_referents(parent))), parent)
        return found

    def _add_type(self, kind: type, amount: Amount) -> None:
        key = Kind(OBJECT, type_name(kind))
        self._named.setdefault(key, set()).add(address_of(kind))
        self._add(key, amount)

    def _add(self, kind: Kind, amount: Amount) -> None:
        self.amounts[kind] = self.amounts.get(kind, Amount(0, 0)) + amount

    def _count_tensors(self, tensors: list[Any]) -> None:
        if not tensors:
            return
        torch, known = self._torch, self._storages
        found: dict[int, tuple[int, Any, int]] = {}
        # Torch's own functions: methods and attributes of a subclass are the script's.
        of_tensor, of_storage = torch._C.TensorBase, torch._C.StorageBase
        # So are modes that are on at this moment.
        with torch._C.DisableTorchFunction():
            for some in self._within.chunks(tensors, _TENSORS):
                for each in some:
                    try:
                        storage = of_tensor.untyped_storage(each)
                        size, key = of_storage.nbytes(storage), of_storage._cdata.__get__(storage)
                        number = int(of_tensor.numel(each))
                        if key in known or (key in found and number <= found[key][0]):
                            continue
                        if size and of_storage.device.__get__(storage).type != "meta":
                            found[key] = number, each, size
                    except Exception as error:
                        # A sparse tensor has no storage of its own. Torch's errors may live on, in a cycle, and with a
                        # trace all that the functions on it hold.
                        error.__traceback__ = None
                        self.uncounted[str(of_tensor.layout.__get__(each)).removeprefix("torch.")] += 1
            known |= found.keys()
            for some in self._within.chunks(list(found.values()), _TENSORS):
                for _, each, size in some:
                    dtype = str(of_tensor.dtype.__get__(each)).removeprefix("torch.")
                    device = str(of_tensor.device.__get__(each))
                    kind = Kind(TENSOR, type_name(type(each)), dtype, _shape(of_tensor, each), device)
                    self._memories.setdefault(kind, []).append(each)
                    self._add(kind, Amount(1, size))

    def _count_arrays(self, array: Any, arrays: list[Any]) -> None:
        roots: dict[int, tuple[Any, Any]] = {}
        for some in self._within.chunks(arrays):
            for each in some:
                root = _root(array, each)
                if root is not None:
                    roots.setdefault(address_of(root), (root, each))
        for pairs in self._within.chunks(list(roots.values())):
            for root, each in pairs:
                size = array.nbytes.__get__(root)
                if size:
                    dtype, shape = str(array.dtype.__get__(root)), array.shape.__get__(root)
                    kind = Kind(ARRAY, type_name(type(root)), dtype, shape, "cpu")
                    # What is held is the view.
                    self._memories.setdefault(kind, []).append(each)
                    self._add(kind, Amount(1, size))

    def _untracked(self, variables: list[object]) -> tuple[list[Any], list[Any]]:
        """Return the arrays, bytes and long texts that the collector does not know, each once."""
        array, is_tracked = self._array, gc.is_tracked
        found: list[Any] = []
        packed: list[Any] = []

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
        # The count of all objects matters more.
        left_s = self._within.left_s
        within = self._within.part(min(0.4 * left_s, left_s - _COUNT * self.list_s))
        for some in within.chunks(self._all):
            # Without the many that hold no data of the script.
            holders = [
                each
                for each in some
                if (kind := type(each)) is not FunctionType
                and kind is not BuiltinFunctionType
                and kind is not GetSetDescriptorType
                and kind is not MethodDescriptorType
                and not ((kind is list or kind is dict or kind is tuple) and sys.getsizeof(each) > _LARGE)
            ]
            found += sort(gc.get_referents(*holders))
        # Tuples and dictionaries of nothing but arrays, numbers and texts the collector does not know either.
        for _ in range(_PACKED):
            level, packed = packed[:_MOST_PACKED], []
            for some in within.chunks(level):
                if inside := sort(gc.get_referents(*some)):
                    found += inside
                    self._packed.append((some, inside))
        once: dict[int, Any] = {}
        for some in within.chunks(found):
            once |= {address_of(each): each for each in some}
        self._is_searched = not within.is_up
        different = once.values()
        return [each for each in different if type(each) is array], [
            each for each in different if type(each) is not array
        ]

    def _count_objects(self, types: Mapping[int, type], counts: Counter[int], sizes: Counter[int]) -> None:
        for address, kind in types.items():
            if str(_attributes(kind).get("__module__")).startswith(_OWN_MODULES):
                continue
            # What was left out may be of the census itself, whose objects are subtracted.
            number = max(0, counts[address])
            self._add_type(kind, Amount(number, max(0, sizes[address]) or number * (_HEAD + _SIZE.__get__(kind))))


def _shape(of_tensor: Any, each: Any) -> tuple[int | None, ...]:
    """Return the sizes of a tensor; None is one that is not a number, as in tensors of tensors."""
    try:
        return tuple(size if type(size) is int else None for size in of_tensor.shape.__get__(each))
    except RuntimeError as error:
        error.__traceback__ = None
        return (None,)


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


def dict_of(holder: object) -> dict[str, object] | None:
    """Return the dictionary of the attributes of an object or a module; None where it has none."""
    descriptor: Any = attribute(type(holder), "__dict__")
    if type(descriptor) is not GetSetDescriptorType and type(descriptor) is not MemberDescriptorType:
        return None
    found: Any = descriptor.__get__(holder)
    return found if type(found) is dict else None
