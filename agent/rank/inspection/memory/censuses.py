"""Two censuses of this rank's memory, at the boundaries before and behind the steps that the observer has chosen.

The training thread takes them, because objects come and go on it; it is held for as long as each takes, some tenths of
a second where a process has some hundred thousand objects.  Between them Python records the line of each allocation.
No object outlives its census in here.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ddptop.agent.rank.asking import Passed, Unanswered
from ddptop.agent.rank.faults import Faults, describe
from ddptop.agent.rank.inspection.memory import devices
from ddptop.agent.rank.inspection.memory.devices import History
from ddptop.agent.rank.inspection.memory.holders import Holders, Variables, most
from ddptop.agent.rank.inspection.memory.objects import OBJECT, TENSOR, Amount, Kind, Objects
from ddptop.agent.rank.inspection.memory.origins import Made, Origins, check_untraced
from ddptop.agent.rank.inspection.memory.resident import resident
from ddptop.agent.rank.records.stamps import Stamps
from ddptop.agent.run.script.sources import Sources
from ddptop.agent.text import clean_line
from ddptop.agent.wire import LEAST, LEAST_OBJECTS, MOST_KINDS, DeviceMemory, Memory, MemoryUse, ObjectKind, Resident

_SNAPSHOT: Final = "rank-{}.pickle"
_TRACED: Final = 4
"""Kinds whose new objects are followed to the lines and places that have them: those that grew most."""
_SAMPLES: Final = 6
"""New objects of a kind that are followed."""
_TEXTS: Final = frozenset({"bytes", "bytearray", "str"})


class _Before(NamedTuple):
    """The first census, without any object."""

    amounts: Mapping[Kind, Amount]
    host_bytes: int
    object_bytes: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Objects that came in addition: of one kind, or of several that differ in their shapes."""

    kind: Kind
    """Where the kinds differ in a dimension, its size is None."""
    count: int
    bytes: int
    kinds: tuple[Kind, ...]


class _Asked:
    """One pair of censuses, from the question until its answer was read."""

    def __init__(self, command: Memory, folder: Path, rank: int) -> None:
        self.token = command.token
        self.first = command.first
        self.steps = command.steps
        self.snapshot = folder / f"{command.number:04}" / _SNAPSHOT.format(rank) if command.number else None
        self.before: _Before | None = None
        """None until the first census is taken."""
        self.origins: Origins | None = None
        self.classes: tuple[type, ...] = ()
        """Of tensors."""
        self.history: History | None = None
        self.resident: Resident | None = None
        self.devices: tuple[DeviceMemory, ...] = ()
        self.began_ns = self.census_ns = 0
        self.use: MemoryUse | None = None
        self.problem = ""
        self.has_passed = False

    @property
    def last(self) -> int:
        return self.first + self.steps - 1


class Censuses:
    """The censuses of one rank, one at a time."""

    def __init__(self, rank: int, folder: Path, stamps: Stamps, sources: Callable[[], Sources], faults: Faults) -> None:
        """Count nothing yet.

        Args:
            rank: of this process.
            folder: where the run keeps censuses.
            stamps: of the training thread, whose present step does not have the time of a census.
            sources: returns the files of this process, once the script is known.
            faults: takes an error of a census.
        """
        self._rank = rank
        self._folder = folder
        self._stamps = stamps
        self._sources = sources
        self._faults = faults
        self._asked: _Asked | None = None
        """The newest."""
        self._active: _Asked | None = None
        """The one whose first census is taken, and not its second."""
        self.is_armed = False
        """True while the training thread is to call `boundary` at the end of each step."""

    def ask(self, command: Memory, completed: int) -> MemoryUse | None:
        """Take two censuses; return them once they are taken, None until then.

        Raises:
            Passed: the rank had begun the first of these steps before it was asked.
            Unanswered: there are none, and why.
        """
        asked = self._asked
        if asked is None or asked.token != command.token:
            if self.is_armed and not command.first:
                # What somebody has asked for comes first; this one can begin with any step.
                return None
            if command.first and completed >= command.first - 1:
                raise Passed
            asked = self._asked = _Asked(command, self._folder, self._rank)
            # From now on the boundary of each step has something to do.
            self.is_armed = True
            self._stamps.eventful = 0
        if asked.has_passed:
            raise Passed
        if asked.problem:
            raise Unanswered(asked.problem)
        return asked.use

    def cancel(self, token: str) -> None:
        """Take none any more of this token; what has begun ends with the step."""
        if (asked := self._asked) is not None and asked.token == token and asked.use is None:
            asked.problem = asked.problem or "it was cancelled"

    def boundary(self, step: int) -> bool:
        """Take a census where one is due behind a step; called by the training thread, and raises nothing.

        Returns:
            True where one was taken, for which the thread was held.
        """
        asked, active = self._asked, self._active
        if asked is None:
            return False
        took = False
        try:
            if active is not None and active is not asked:
                # Nobody waits for it any more.
                self._abort(active)
            if asked.problem:
                self._abort(asked)
            elif asked.before is None:
                asked.first = asked.first or step + 1
                if step >= asked.first:
                    asked.has_passed = True
                elif step == asked.first - 1:
                    check_untraced()
                    took = True
                    self._active = asked
                    _begin(asked, self._sources())
            elif step >= asked.last:
                took, self._active = True, None
                self._end(asked)
        except Unanswered as reason:
            asked.problem = str(reason)
            self._abort(asked)
        except Exception as error:
            asked.problem = describe(error)
            self._faults.note("a census of the memory", error)
            self._abort(asked)
        self.is_armed = step < asked.last and not asked.has_passed and not asked.problem
        if self.is_armed:
            self._stamps.eventful = 0
        return took

    def _end(self, asked: _Asked) -> None:
        use, snapshot = _end(asked, self._sources())
        if snapshot is None:
            asked.use = use
        else:
            work = threading.Thread(target=self._write, args=(asked, use, snapshot), name="ddptop-memory", daemon=True)
            work.start()

    def _write(self, asked: _Asked, use: MemoryUse, snapshot: Any) -> None:
        """Write the allocator's snapshot, on a thread of its own; the census stands without it."""
        assert asked.snapshot is not None
        try:
            asked.snapshot.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            devices.write(snapshot, asked.snapshot)
            said = {"snapshot": str(asked.snapshot)}
        except Exception as error:
            said = {"problem": f"its snapshot cannot be written: {describe(error)}"}
        asked.use = msgspec.structs.replace(
            use, devices=tuple(msgspec.structs.replace(each, **said) for each in use.devices)
        )

    def _abort(self, asked: _Asked) -> None:
        """End what records allocations, without a census."""
        self._active = None
        for each in (asked.origins and asked.origins.end, asked.history and asked.history.stop):
            with contextlib.suppress(Exception):
                if each:
                    each()

    def abandon(self) -> None:
        """In a forked child: its steps are not these."""
        self.is_armed = False
        active, self._active = self._active, None
        if active is not None and active.origins is not None:
            active.origins.end()

    def close(self) -> None:
        """End with the script: there is no census behind steps that are not made."""
        self.is_armed = False
        if self._asked is not None and self._asked.use is None:
            self._asked.problem = self._asked.problem or "its script has ended before these steps"


def _begin(asked: _Asked, sources: Sources) -> None:
    with _census(asked):
        variables = Variables(sources)
        objects = Objects(variables.values)
        try:
            objects.count((variables, variables.values, variables.names))
            asked.classes = objects.classes
            asked.before = _Before(objects.amounts, objects.host_bytes, objects.object_bytes)
        finally:
            objects.close()
        del objects, variables
    asked.history = History() if asked.snapshot is not None else None
    asked.origins = Origins()
    asked.devices = devices.devices()
    asked.resident = _own_left_out(asked.origins)
    asked.began_ns = time.monotonic_ns()


def _end(asked: _Asked, sources: Sources) -> tuple[MemoryUse, Any]:
    """Return the census, and the snapshot of the allocator where there is one."""
    assert asked.before is not None
    assert asked.origins is not None
    elapsed_ns = time.monotonic_ns() - asked.began_ns
    asked.origins.check()
    after, on_devices = _own_left_out(asked.origins), devices.devices()
    with _census(asked):
        snapshot = asked.history.end() if asked.history is not None else None
        variables = Variables(sources)
        objects = Objects(variables.values, asked.classes)
        try:
            made = asked.origins.take(objects.traceable)
            own = variables, variables.values, variables.names, asked.before.amounts
            objects.count(own)
            kinds, left_out = _kinds(objects, asked, made, variables, sources)
            use = MemoryUse(
                asked.first,
                asked.last,
                kinds,
                left_out,
                objects.host_bytes,
                objects.host_bytes - asked.before.host_bytes,
                objects.object_bytes,
                objects.object_bytes - asked.before.object_bytes,
                _resident_grown(after, asked.resident),
                tuple(_device_grown(each, asked.devices) for each in on_devices),
                elapsed_ns=elapsed_ns,
            )
        finally:
            objects.close()
        del objects, variables, made, own
    asked.before = asked.before._replace(amounts={})
    return msgspec.structs.replace(use, census_ns=asked.census_ns), snapshot


@contextlib.contextmanager
def _census(asked: _Asked) -> Iterator[None]:
    """Keep the collector from running meanwhile, which would run finalizers of the script's, and take the time."""
    began, collects = time.monotonic_ns(), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        asked.census_ns += time.monotonic_ns() - began


def _own_left_out(origins: Origins) -> Resident | None:
    """Return the resident memory without that of the record of allocations."""
    found = resident()
    if found is None:
        return None
    own = origins.own_bytes
    heap = None if found.heap is None else max(0, found.heap - own)
    return msgspec.structs.replace(found, anonymous=max(0, found.anonymous - own), heap=heap)


def _resident_grown(after: Resident | None, before: Resident | None) -> Resident | None:
    if after is None or before is None:
        return after
    return msgspec.structs.replace(
        after,
        anonymous_grown=after.anonymous - before.anonymous,
        file_grown=after.file - before.file,
        shared_grown=after.shared - before.shared,
        heap_grown=0 if after.heap is None or before.heap is None else after.heap - before.heap,
    )


def _device_grown(after: DeviceMemory, all_before: Iterable[DeviceMemory]) -> DeviceMemory:
    before = next((each for each in all_before if each.device == after.device), None)
    allocated, reserved = (before.allocated, before.reserved) if before is not None else (0, 0)
    return msgspec.structs.replace(
        after, allocated_grown=after.allocated - allocated, reserved_grown=after.reserved - reserved
    )


def _kinds(
    objects: Objects, asked: _Asked, made: Made, variables: Variables, sources: Sources
) -> tuple[tuple[ObjectKind, ...], int]:
    """Return the kinds that grew, the most first, then those with the most bytes; and how many are not among them."""
    assert asked.before is not None
    before, now = asked.before.amounts, objects.amounts
    least = LEAST * asked.steps, LEAST_OBJECTS * asked.steps
    grown = [each for each in growths(before, now, asked.steps) if each.bytes >= least[each.kind.kind == OBJECT]]
    grown = grown[: MOST_KINDS // 2]
    samples = [_new(objects, each, made) if number < _TRACED else [] for number, each in enumerate(grown)]
    flat = [each for some in samples for each in some]
    places = Holders(objects, variables, sources).places(flat) if flat else []
    of_objects = next((each for each in grown if each.kind.kind == OBJECT), None)
    found, at = [], 0
    for growth, some in zip(grown, samples, strict=True):
        amount = now[growth.kinds[0]] if len(growth.kinds) == 1 else Amount(
            sum(now[each].count for each in growth.kinds if each in now),
            sum(now[each].bytes for each in growth.kinds if each in now),
        )  # fmt: skip
        line = most([made.line(each, sources) for each in some])
        if not line and growth is of_objects:
            line, size = made.of_objects(sources)
            line = line if size >= growth.bytes / 2 else ""
        holder = most(places[at : at + len(some)])
        found.append(_said(growth, amount, line, holder, _graphs(some) if growth.kind.kind == TENSOR else 0))
        at += len(some)
    flat.clear()
    samples.clear()
    said = {kind for growth in grown for kind in growth.kinds}
    largest = sorted(
        ((amount, kind) for kind, amount in now.items() if kind not in said), key=lambda each: -each[0].bytes
    )
    room = MOST_KINDS - len(found)
    for amount, kind in largest[:room]:
        was = before.get(kind, Amount(0, 0))
        difference = Growth(kind, amount.count - was.count, amount.bytes - was.bytes, (kind,))
        if kind.kind != OBJECT and difference.count > 0:
            # Another shape has as many fewer.
            difference = Growth(kind, 0, 0, (kind,))
        found.append(_said(difference, amount))
    return tuple(found), max(0, len(largest) - room)


def growths(before: Mapping[Kind, Amount], now: Mapping[Kind, Amount], steps: int) -> list[Growth]:
    """Return what there is more of, the most bytes first.

    Where batches differ in their length, so do the shapes of one tensor from step to step: kinds that have not grown
    with each step are summed up over shapes, and only what there is more of in all is growth.
    """
    found: list[Growth] = []
    alike: defaultdict[tuple[object, ...], list[Growth]] = defaultdict(list)
    for kind in before.keys() | now.keys():
        was, amount = before.get(kind, Amount(0, 0)), now.get(kind, Amount(0, 0))
        each = Growth(kind, amount.count - was.count, amount.bytes - was.bytes, (kind,))
        if kind.kind == OBJECT:
            if each.bytes > 0:
                found.append(each)
        elif each.count >= steps:
            found.append(each)
        elif each.count:
            alike[kind.kind, kind.type, kind.dtype, kind.device, len(kind.shape)].append(each)
    for some in alike.values():
        count, size = sum(each.count for each in some), sum(each.bytes for each in some)
        if count > 0 and size > 0:
            shapes = zip(*(each.kind.shape for each in some), strict=True)
            shape = tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in shapes)
            kinds = tuple(each.kind for each in sorted(some, key=lambda each: -each.bytes))
            found.append(Growth(some[0].kind._replace(shape=shape), count, size, kinds))
    return sorted(found, key=lambda each: (-each.bytes, each.kind.kind, each.kind.type))


def _new(objects: Objects, growth: Growth, made: Made) -> list[object]:
    """Return some of the objects that came, evenly over all of them."""
    candidates = [each for kind in growth.kinds for each in objects.of_kind(kind)]
    if growth.kind.kind == OBJECT and growth.kind.type not in _TEXTS:
        # The collector's own order: the last ones of the oldest generation have come last.
        found = candidates[-_SAMPLES:] if growth.count > 0 else []
    else:
        found = [each for each in candidates if made.is_new(each)]
    return found[:: max(1, len(found) // _SAMPLES)][:_SAMPLES]


def _graphs(some: Iterable[object]) -> int:
    """Return how many of these tensors hold the graph of their making."""
    return sum(bool(_has_graph(each)) for each in some)


def _has_graph(tensor: Any) -> bool:
    import torch

    # As in the census: no function of a subclass, or of a mode.
    with torch._C.DisableTorchFunction():
        return tensor.grad_fn is not None


def _said(growth: Growth, amount: Amount, made: str = "", holder: str = "", graphs: int = 0) -> ObjectKind:
    kind = growth.kind
    return ObjectKind(
        kind.kind,
        clean_line(kind.type, 100),
        clean_line(kind.dtype, 40),
        tuple(kind.shape[:32]),
        kind.device,
        amount.count,
        amount.bytes,
        growth.count,
        growth.bytes,
        made,
        holder,
        graphs,
    )
