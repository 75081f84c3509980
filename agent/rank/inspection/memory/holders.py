"""The named places that hold objects: a variable of a module or function, an attribute of an object or a class.

It goes from an object to those that refer to it, and from these on, a few times.  No code of the objects runs: names of
attributes are read from dictionaries and slots.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import chain
from types import (
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any, Final, NamedTuple

from ddptop.agent.rank.inspection.frames import variables
from ddptop.agent.rank.inspection.memory.objects import Objects, Time, address_of, dict_of, members, type_name
from ddptop.agent.run.script.sources import Sources
from ddptop.agent.run.script.stacks import function_name
from ddptop.agent.text import clean_line

_HOPS: Final = 7
"""References from an object to its place at most."""
_MOST: Final = 300
"""Objects of one distance that are followed at most."""
_TOGETHER: Final = 32
"""Objects whose holders are looked for at once."""
_CALL: Final = 2
"""Times as long as a list of all objects that takes, about."""
_LONGEST: Final = 60
"""Characters of a name at most."""
_CONTAINERS: Final = (dict, list, tuple, set, frozenset, deque)
_DICT_OF_MODULE: Final[Any] = vars(ModuleType)["__dict__"]


class _Node(NamedTuple):
    path: tuple[Any, ...]
    """The objects from the one that is held on."""
    samples: frozenset[int]
    """The numbers of the objects that are held."""


class Variables:
    """The variables of the script's modules, and of its functions that the training thread is in, while this lives."""

    def __init__(self, sources: Sources) -> None:
        """Read them; those of modules the collector knows, unless the script has frozen them (`gc.freeze`)."""
        self.values: list[object] = []
        self.names: dict[int, str] = {}
        """By address of a value, its name: "`kept` of main()"."""
        self._read_modules(sources)
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            code = frame.f_code
            if not sources.is_library(code.co_filename):
                where = f"of {function_name(getattr(code, 'co_qualname', code.co_name))}()"
                for name, value in variables(frame).items():
                    self.values.append(value)
                    self.names.setdefault(address_of(value), f"`{clean_line(str(name), _LONGEST)}` {where}")
            frame = frame.f_back

    def _read_modules(self, sources: Sources) -> None:
        for module in list(sys.modules.values()):
            if not issubclass(type(module), ModuleType):
                continue
            of_module = _DICT_OF_MODULE.__get__(module)
            file = of_module.get("__file__")
            if type(file) is not str or sources.is_library(file):
                continue
            for name, value in list(of_module.items()):
                if type(name) is str and type(value) is not ModuleType:
                    self.values.append(value)
                    self.names.setdefault(address_of(value), f"`{clean_line(name, _LONGEST)}` of {sources.name(file)}")


class Holders:
    """Looks for the places; for use on the training thread, while it stands at a boundary."""

    def __init__(
        self, within: Time, objects: Objects, variables: Variables, sources: Sources, grown: Set[int] = frozenset()
    ) -> None:
        """Prepare; what was made since the objects were gathered is of the census itself.

        Args:
            within: the time for it.
            objects: of the census.
            variables: of the script.
            sources: name its files.
            grown: addresses of the types of which there came more: whatever holds these objects holds all in them.
        """
        self._within = within
        self._objects = objects
        self._grown = grown
        self._parents = objects.parents()
        self._sources = sources
        self._modules = {
            address_of(_DICT_OF_MODULE.__get__(module)): name
            for name, module in list(sys.modules.items())
            if type(name) is str and issubclass(type(module), ModuleType)
        }
        self._variables = variables.names
        # Whatever was frozen (`gc.freeze`) the collector does not look at.
        is_frozen = gc.get_freeze_count() > 0
        self._unknown = [each for each in variables.values if is_frozen or not gc.is_tracked(each)]

    def places(self, samples: Sequence[object]) -> list[str]:
        """Return where each of some objects is held: ``list `kept` of train.py``; empty where it was not found."""
        found: dict[int, str] = {}
        inner: dict[int, str] = {}
        """Places in objects that came too."""
        nodes = {address_of(each): _Node((each,), frozenset({number})) for number, each in enumerate(samples)}
        visited = set(nodes)
        for _ in range(_HOPS):
            following: dict[int, _Node] = {}
            for node, referrer in self._referrers(nodes):
                left = node.samples - found.keys()
                if not left:
                    continue
                path = (*node.path, referrer)
                place = self._place(path)
                if (
                    place is not None
                    and type(referrer) is not FunctionType
                    and address_of(type(referrer)) in self._grown
                ):
                    inner = dict.fromkeys(left, place) | inner
                    place = None
                if place is None and (variable := self._variables.get(address_of(referrer))) is not None:
                    place = f"{type_name(type(referrer))} {variable}"
                if place is not None:
                    found |= dict.fromkeys(left, place)
                elif (known := following.get(address_of(referrer))) is not None:
                    following[address_of(referrer)] = known._replace(samples=known.samples | left)
                elif address_of(referrer) not in visited and len(following) < _MOST:
                    visited.add(address_of(referrer))
                    following[address_of(referrer)] = _Node(path, left)
            nodes = {address: node for address, node in following.items() if node.samples - found.keys()}
            if not nodes:
                break
        # A variable of a function may be the object itself; what else holds it does so for longer.
        found = inner | found
        places = (found.get(number) or self._variables.get(address_of(each), "") for number, each in enumerate(samples))
        return [clean_line(place, 200) for place in places]

    def _referrers(self, nodes: Mapping[int, _Node]) -> Iterator[tuple[_Node, Any]]:
        """Yield the objects of the census that refer to these, each with the one that it refers to."""
        samples = [node.path[-1] for node in nodes.values()]
        for at in range(0, len(samples), _TOGETHER):
            # Each such call goes over all objects of the process.
            if not self._within.has(_CALL * self._objects.list_s):
                return
            referrers = gc.get_referrers(*samples[at : at + _TOGETHER])
            own = self._objects.own_addresses()
            known = [each for each in referrers if address_of(each) not in own and type(each) is not FrameType]
            for referrer in chain(known, self._unknown if not at else ()):
                for some in self._within.chunks(gc.get_referents(referrer)):
                    for address in nodes.keys() & set(map(address_of, some)):
                        yield nodes[address], referrer
        for address, node in nodes.items():
            if (parent := self._parents.get(address)) is not None:
                yield node, parent

    def _place(self, path: tuple[Any, ...]) -> str | None:
        """Return the place at the end of a path, None where it has no name of its own."""
        sample, kind = path[0], type(path[-1])
        *inner, held, holder = path
        if kind is dict:
            module = self._modules.get(address_of(holder))
            return None if module is None else _named(sample, held, _key(holder, held), self._module(module, holder))
        if kind is FunctionType:
            if held is not holder.__closure__ or len(inner) < 2:
                return None
            *_, value, cell = inner
            cells = zip(holder.__code__.co_freevars, holder.__closure__, strict=False)
            name = next((name for name, each in cells if each is cell), None)
            return _named(sample, value, name, f"function {function_name(holder.__qualname__)}")
        if kind is GeneratorType or kind is CoroutineType:
            within = "" if held is sample else f"{type_name(type(held))} in "
            return f"{within}a variable of {function_name(holder.__qualname__)}()"
        if kind is CellType or issubclass(kind, (*_CONTAINERS, ModuleType)):
            return None
        if issubclass(kind, type):
            name = _key(held, inner[-1]) if inner and type(held) is dict else None
            return _named(sample, inner[-1], name, f"class {type_name(holder)}") if inner else None
        own = dict_of(holder)
        if inner and own is held:
            held = inner[-1]
        name = _key(own or {}, held) or next((name for name, value in _slots(holder) if value is held), None)
        return _named(sample, held, name, type_name(kind))

    def _module(self, name: str, variables: Mapping[str, object]) -> str:
        file = variables.get("__file__")
        return self._sources.name(file) if type(file) is str else f"module {name}"


def _named(sample: object, held: object, name: str | None, owner: str) -> str | None:
    """Return the words for a thing that has a name in its owner: the object that is looked for, or what holds that."""
    container = "" if held is sample else f"{type_name(type(held))} "
    return None if name is None else f"{container}`{clean_line(name, _LONGEST)}` of {owner}"


def _key(found: dict[Any, Any], value: object) -> str | None:
    """Return the name of a value in a dictionary of names."""
    return next((key for key, each in found.items() if each is value and type(key) is str), None)


def _slots(holder: object) -> Iterator[tuple[str, object]]:
    for name, descriptor in members(type(holder)):
        if type(descriptor) is MemberDescriptorType:
            try:
                yield name, descriptor.__get__(holder)
            except AttributeError:
                continue
