"""Two censuses of this rank's memory, at the boundaries before and behind the steps that the observer has chosen.

The training thread takes them, because objects come and go on it; it is held for as long as each takes, some tenths of
a second where a process has some hundred thousand objects, and for no longer than the question allows.  Between them
Python records the line of each allocation.  No object outlives its census in here.
"""

from __future__ import annotations

import contextlib
import gc
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ddptop.agent.rank.ahead import Asked, OverSteps, Passed, Unanswered
from ddptop.agent.rank.commands.gate import Gate
from ddptop.agent.rank.faults import Faults, describe, is_ours
from ddptop.agent.rank.inspection.memory import devices
from ddptop.agent.rank.inspection.memory.holders import Holders, Variables
from ddptop.agent.rank.inspection.memory.objects import OBJECT, TENSOR, Amount, Kind, Objects, Time, level_of
from ddptop.agent.rank.inspection.memory.origins import Made, Origins, check_untraced
from ddptop.agent.rank.inspection.memory.resident import resident
from ddptop.agent.rank.records.stamps import Stamps
from ddptop.agent.run.files import marks
from ddptop.agent.run.script.sources import Sources
from ddptop.agent.text import clean_line
from ddptop.agent.wire import LEAST, LEAST_OBJECTS, MOST_KINDS, Memory, MemoryUse, ObjectKind

_SNAPSHOT: Final = "rank-{}.pickle"
_TRACED: Final = 4
"""Kinds whose new objects are followed to the lines and places that have them: those that grew most."""
_SAMPLES: Final = 6
"""New objects of a kind that are followed."""
_NONE: Final = Amount(0, 0)
_FIRST: Final = 0.45
"""Part of the time for both censuses that the first one may take."""
_OF_TIMEOUT: Final = 0.25
"""Part of the timeout of a process group that they may take: the other ranks wait in their collectives."""
LEASE_S: Final = 4.0
"""Seconds after which a question ends that nobody repeats: its observer is gone."""
DOING: Final = "counting memory"
"""The activity of a rank meanwhile."""


class _Question(Asked[MemoryUse]):
    """The question for two censuses."""

    def __init__(self, command: Memory, folder: Path, rank: int, clock: Callable[[], float]) -> None:
        super().__init__(command.token, command.first, command.steps)
        self.most_s = command.most_ms / 1e3
        self.clock = clock
        self.repeated_at = clock()
        self.snapshot = folder / f"{command.number:04}" / _SNAPSHOT.format(rank) if command.number else None

    def check_awaited(self) -> None:
        """Raise `Unanswered` where nobody waits for the answer any more."""
        if not self.problem and self.clock() - self.repeated_at > LEASE_S:
            self.problem = "its observer has not asked for it again"
        if self.problem:
            raise Unanswered(self.problem)


class Censuses(OverSteps[_Question]):
    """The censuses of one rank, one pair at a time."""

    def __init__(
        self,
        rank: int,
        folder: Path,
        stamps: Stamps,
        gate: Gate,
        sources: Callable[[], Sources],
        faults: Faults,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Count nothing yet.

        Args:
            rank: of this process.
            folder: where the run keeps censuses.
            stamps: of the training thread, whose present step does not have the time of a census.
            gate: says that the thread is held.
            sources: returns the files of this process, once the script is known.
            faults: takes an error of a census.
            clock: in seconds, by which a census ends in time, and a question that nobody repeats.
        """
        super().__init__(stamps)
        self._rank = rank
        self._folder = folder
        self._gate = gate
        self._clock = clock
        self._sources = sources
        self._faults = faults
        self._pair: _Pair | None = None
        """The one whose first census is taken, and not its second."""

    def ask(self, command: Memory, completed: int) -> MemoryUse | None:
        """Take two censuses; return what they have found once both are taken, None until then.

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
            asked = _Question(command, self._folder, self._rank, self._clock)
            self._take(asked)
        asked.repeated_at = self._clock()
        asked.check()
        return asked.answer

    def boundary(self, step: int, timeout_s: float | None = None) -> bool:
        """Take a census where one is due behind a step; called by the training thread.

        Args:
            step: that has ended.
            timeout_s: of collectives in the default process group; None: it is not known.

        Returns:
            True where one was taken, for which the thread was held.

        Raises:
            BaseException: what a signal handler of the script has raised meanwhile, and nothing else.
        """
        asked = self._asked
        if asked is None:
            return False
        try:
            return self._take_due(asked, step, min(asked.most_s, _OF_TIMEOUT * (timeout_s or math.inf)))
        except Unanswered as reason:
            asked.problem = str(reason)
        except BaseException as error:
            asked.problem = describe(error)
            if not isinstance(error, Exception) or not is_ours(error):
                raise
            self._faults.note("a census of the memory", error)
        finally:
            if asked.problem:
                self._end_pair()
            self._go_on(step, is_under_way=self._pair is not None)
        return True

    def _take_due(self, asked: _Question, step: int, most_s: float) -> bool:
        if self._pair is not None and self._pair.asked is not asked:
            # Nobody waits for it any more.
            self._end_pair()
        asked.check_awaited()
        if self._pair is None:
            asked.first = asked.first or step + 1
            asked.has_passed = step >= asked.first
            if step != asked.first - 1:
                return False
            with self._gate.hold_up(DOING):
                self._pair = _Pair(asked, self._sources(), most_s)
        elif step < asked.last:
            return False
        else:
            with self._gate.hold_up(DOING):
                use, snapshot = self._pair.end()
            self._end_pair()
            if snapshot is None:
                asked.answer = use
            else:
                given = asked, use, snapshot
                threading.Thread(target=self._write, args=given, name="ddptop-memory", daemon=True).start()
        return True

    def _end_pair(self) -> None:
        """End what records allocations."""
        pair, self._pair = self._pair, None
        if pair is not None:
            with contextlib.suppress(Exception):
                pair.close()

    def _write(self, asked: _Question, use: MemoryUse, snapshot: Any) -> None:
        """Write the allocator's snapshot, on a thread of its own; the census stands without it."""
        assert asked.snapshot is not None
        try:
            marks.make(asked.snapshot.parent)
            devices.write(snapshot, asked.snapshot)
            said = {"snapshot": str(asked.snapshot)}
        except Exception as error:
            said = {"problem": f"its snapshot cannot be written: {describe(error)}"}
        asked.answer = msgspec.structs.replace(
            use, devices=tuple(msgspec.structs.replace(each, **said) for each in use.devices)
        )

    def abandon(self) -> None:
        """In a forked child: its steps are not these."""
        self.is_armed = False
        pair, self._pair = self._pair, None
        if pair is not None:
            pair.origins.end()


class _Growth(NamedTuple):
    """Objects that came in addition: of one kind, or of several that differ in their shapes."""

    kind: Kind
    """Where the kinds differ in a dimension, its size is None."""
    now: Amount
    """All that live."""
    grown: Amount
    kinds: tuple[Kind, ...]


class _Pair:
    """Two censuses, from the first until nobody waits for the second."""

    def __init__(self, asked: _Question, sources: Sources, most_s: float) -> None:
        """Take the first one; both may take so many seconds.

        Raises:
            Unanswered: the script records allocations itself.
        """
        check_untraced()
        self.asked = asked
        self._sources = sources
        self._most_s = most_s
        self._before: Mapping[Kind, Amount] = {}
        self._classes: tuple[type, ...] = ()
        """Of tensors."""
        self._level = 0
        """As in `Objects`, so far."""
        self._census_ns = 0
        with self._census(_FIRST * most_s) as (objects, variables, _):
            check_untraced(variables.names)
            objects.count(1.0)
            self._before, self._classes = objects.amounts, objects.classes
            self._level, self._remarks = objects.level, [*objects.remarks]
        with contextlib.ExitStack() as stack:
            self._history = None
            if asked.snapshot is not None:
                self._history = stack.enter_context(contextlib.closing(devices.History()))
            self.origins = Origins()
            stack.callback(self.origins.end)
            self._devices = devices.devices()
            self._resident = resident(self.origins.own_bytes)
            self.close = stack.pop_all().close
            """Ends what records allocations, where it still does."""
        self._began_ns = time.monotonic_ns()

    @contextlib.contextmanager
    def _census(self, seconds: float) -> Iterator[tuple[Objects, Variables, Time]]:
        """Gather all objects, and let go of them within so many seconds.

        The collector does not run meanwhile, which would run finalizers of the script's, and take the time.
        """
        began, collects = time.monotonic_ns(), gc.isenabled()
        gc.disable()
        try:
            within = Time(seconds, self.asked.check_awaited, self.asked.clock)
            variables = Variables(self._sources)
            own = variables, variables.values, variables.names, self._before
            objects = Objects(within, variables.values, self._classes, own)
            try:
                yield objects, variables, within
            finally:
                objects.close()
        finally:
            if collects:
                gc.enable()
            self._census_ns += time.monotonic_ns() - began

    def end(self) -> tuple[MemoryUse, Any]:
        """Take the second one; return what both have found, and the snapshot of the allocator where there is one.

        Raises:
            Unanswered: the script has begun or ended a record of allocations meanwhile.
        """
        elapsed_ns = time.monotonic_ns() - self._began_ns
        self.origins.check()
        of_process = resident(self.origins.own_bytes, self._resident)
        of_devices = devices.devices(self._devices)
        with self._census(self._most_s - self._census_ns / 1e9) as (objects, variables, within):
            made = self.origins.take(objects.traceable, within.part(0.3 * within.left_s))
            objects.count(0.6)
            first_level = self._level
            self._before = self._comparable(objects)
            kinds, left_out = self._kinds(objects, variables, made, within)
            # Behind the count, because it is many objects itself.
            snapshot = None if self._history is None else self._history.snapshot()
            remarks = self._remarks if objects.level > first_level else [*objects.remarks]
            if not remarks and within.is_up:
                remarks = ["there was no time to look for all that holds what grew"]
        tensors, of_python = _bytes(objects.amounts)
        tensors_before, of_python_before = _bytes(self._before)
        use = MemoryUse(
            self.asked.first,
            self.asked.last,
            kinds,
            left_out,
            tensors,
            tensors - tensors_before,
            of_python,
            of_python - of_python_before,
            of_process,
            of_devices,
            self._census_ns,
            elapsed_ns,
            self._level == 3,
            tuple(clean_line(remark, 200) for remark in remarks),
        )
        return use, snapshot

    def _comparable(self, objects: Objects) -> Mapping[Kind, Amount]:
        """Return the first census, with the amounts of the second where one of them has not counted all."""
        self._level = level = min(self._level, objects.level)
        found = {kind: amount for kind, amount in self._before.items() if level_of(kind) <= level}
        return found | {kind: amount for kind, amount in objects.amounts.items() if level_of(kind) > level}

    def _kinds(
        self, objects: Objects, variables: Variables, made: Made, within: Time
    ) -> tuple[tuple[ObjectKind, ...], int]:
        """Return the kinds that grew, the most first, then those with the most bytes; and how many are left out."""
        now = objects.amounts
        grown, little = _growths(self._before, now, self.asked.steps)
        # The graph of a loss takes more than the loss.
        grown += [each for each in little if _graphs(_new(objects, each, made))]
        grown = grown[: MOST_KINDS // 2]
        samples = [_new(objects, each, made) if number < _TRACED else [] for number, each in enumerate(grown)]
        followed = [each for some in samples for each in some]
        more = (kind for kind in now if (now[kind] - self._before.get(kind, _NONE)).count >= self.asked.steps)
        types = frozenset(each for kind in more for each in objects.types(kind))
        places = iter(Holders(within, objects, variables, self._sources, types).places(followed) if followed else ())
        of_objects = next((each for each in grown if each.kind.kind == OBJECT), None)
        found = []
        for growth, some in zip(grown, samples, strict=True):
            line = _most(made.line(each, self._sources) for each in some)
            if not line and growth is of_objects:
                line, size = made.of_objects(self._sources)
                line = line if size >= growth.grown.bytes / 2 else ""
            graphs = _graphs(some) if growth.kind.kind == TENSOR else 0
            found.append(_said(growth, line, _most(islice(places, len(some))), graphs))
        said = {kind for growth in grown for kind in growth.kinds}
        largest = sorted((kind for kind in now if kind not in said), key=lambda kind: -now[kind].bytes)
        room = MOST_KINDS - len(found)
        for kind in largest[:room]:
            difference = now[kind] - self._before.get(kind, _NONE)
            if kind.kind != OBJECT and difference.count > 0:
                # Another shape has as many fewer.
                difference = _NONE
            found.append(_said(_Growth(kind, now[kind], difference, (kind,))))
        return tuple(found), max(0, len(largest) - room)


def _bytes(amounts: Mapping[Kind, Amount]) -> tuple[int, int]:
    """Return the bytes of tensors and arrays on the host, and those of Python objects."""
    of_objects = sum(amount.bytes for kind, amount in amounts.items() if kind.kind == OBJECT)
    return sum(amount.bytes for kind, amount in amounts.items() if kind.device == "cpu"), of_objects


def _growths(
    before: Mapping[Kind, Amount], now: Mapping[Kind, Amount], steps: int
) -> tuple[list[_Growth], list[_Growth]]:
    """Return what there is more of, the most bytes first; and tensors that come with each step, of a few bytes.

    Where batches differ in their length, so do the shapes of one tensor from step to step: kinds that have not grown
    with each step are summed up over shapes, and only what there is more of in all is growth.
    """
    found: list[_Growth] = []
    alike: defaultdict[tuple[object, ...], list[_Growth]] = defaultdict(list)
    for kind in before.keys() | now.keys():
        amount = now.get(kind, _NONE)
        each = _Growth(kind, amount, amount - before.get(kind, _NONE), (kind,))
        if kind.kind == OBJECT or each.grown.count >= steps:
            found.append(each)
        elif each.grown.count:
            alike[kind._replace(shape=()), len(kind.shape)].append(each)
    for some in alike.values():
        grown = sum((each.grown for each in some), _NONE)
        if grown.count > 0:
            shapes = zip(*(each.kind.shape for each in some), strict=True)
            shape = tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in shapes)
            kinds = tuple(each.kind for each in sorted(some, key=lambda each: -each.grown.bytes))
            found.append(_Growth(kinds[0]._replace(shape=shape), sum((each.now for each in some), _NONE), grown, kinds))
    least = {OBJECT: LEAST_OBJECTS * steps}
    many = [each for each in found if each.grown.bytes >= least.get(each.kind.kind, LEAST * steps)]
    little = [each for each in found if each.kind.kind == TENSOR and 0 < each.grown.bytes < LEAST * steps]
    return sorted(many, key=lambda each: (-each.grown.bytes, each.kind.kind, each.kind.type)), little


def _new(objects: Objects, growth: _Growth, made: Made) -> list[object]:
    """Return some of the objects that came, evenly over all of them."""
    found: list[object] = []
    for kind in growth.kinds if growth.grown.count > 0 else ():
        found += (
            made.of_types(objects.types(kind)) if kind.kind == OBJECT else filter(made.is_new, objects.of_kind(kind))
        )
    return found[:: max(1, len(found) // _SAMPLES)][:_SAMPLES]


def _most(places: Iterable[str]) -> str:
    """Return the place that most of some objects have in common; empty where that is none."""
    found = Counter(place for place in places if place)
    return found.most_common(1)[0][0] if found else ""


def _graphs(tensors: Collection[Any]) -> int:
    """Return how many of some tensors hold the graph of their making; none where most do not.

    The output of the present step does, and shares its memory with what was detached from it and is kept.
    """
    import torch

    # As in the census: no function of a subclass, or of a mode.
    grad_fn: Any = torch._C.TensorBase.grad_fn
    with torch._C.DisableTorchFunction():
        found = sum(grad_fn.__get__(each) is not None for each in tensors)
    return found if 2 * found > len(tensors) else 0


def _said(growth: _Growth, made: str = "", holder: str = "", graphs: int = 0) -> ObjectKind:
    kind = growth.kind
    return ObjectKind(
        kind.kind,
        clean_line(kind.type, 100),
        clean_line(kind.dtype, 40),
        tuple(kind.shape[:32]),
        kind.device,
        growth.now.count,
        growth.now.bytes,
        growth.grown.count,
        growth.grown.bytes,
        made,
        holder,
        graphs,
    )
