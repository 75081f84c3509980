"""A rank says which objects came within the steps that were asked for, by their lines and holders, and keeps none."""

from __future__ import annotations

import _tracemalloc
import ctypes
import gc
import inspect
import os
import signal
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import psutil
import pytest
from support import late
from support.bases import marked

from ddptop.agent import wire
from ddptop.agent.observer.judge.growth import sentence
from ddptop.agent.rank.ahead import Passed, Unanswered
from ddptop.agent.rank.commands.gate import Gate
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.inspection.memory.censuses import Censuses
from ddptop.agent.run.script.sources import Sources

if TYPE_CHECKING:
    import numpy as np
    import torch

_imports = late.imports(globals())

NAME = Path(__file__).name
GLOBAL: list[Any] = []


class Told(threading.Event):
    """The sign of life that a rank is held has been sent already."""

    def wait(self, timeout: float | None = None) -> bool:
        return True


class Training:
    """A loop whose boundaries call the censuses, as a session does."""

    def __init__(self, folder: Path) -> None:
        self.completed = 0
        self.faults = Faults()
        sources = Sources(str(Path(__file__).parent), "/")
        stamps = cast(Any, SimpleNamespace(eventful=7))
        self.gate = Gate()
        self.gate.is_told = Told()
        self.now = self.held_s = 0.0
        self.timeout_s: float | None = None
        self.most_ms = wire.CENSUS_MS[0]
        self.censuses = Censuses(2, folder, stamps, self.gate, lambda: sources, self.faults, lambda: self.now)

    def boundary(self) -> None:
        """End a step, where the training thread stands in its own function."""
        self.completed += 1
        began = self.now
        if self.censuses.is_armed:
            self.censuses.boundary(self.completed, self.timeout_s)
        self.held_s += self.now - began

    def ask(self, first: int, steps: int = 3, token: str = "a", number: int = 0) -> wire.MemoryUse | None:
        return self.censuses.ask(wire.Memory(1, token, number, first, steps, most_ms=self.most_ms), self.completed)

    def over(self, step: Callable[[], object], steps: int = 3) -> wire.MemoryUse:
        """Return the censuses before and behind so many steps."""
        step()
        self.boundary()
        self.ask(self.completed + 2, steps)
        for _ in range(steps + 2):
            step()
            self.boundary()
        if self.faults.count:
            raise AssertionError(self.faults.last)
        return cast(wire.MemoryUse, self.ask(0, steps))


# In a test the script is a function without `assert`: pytest has such functions call `locals()`.


@pytest.fixture
def training(tmp_path: Path) -> Training:
    # A census looks through what is not frozen: of torch's hundred thousands of objects once is enough.
    gc.freeze()
    return Training(marked(tmp_path) / "memory")


def here(function: Callable[..., object], text: str) -> str:
    """Return the line of a function that has a text: `test_censuses.py:52`."""
    lines, first = inspect.getsourcelines(function)
    (number,) = (first + number for number, line in enumerate(lines) if line.rstrip().endswith(text))
    return f"{NAME}:{number}"


def grown(use: wire.MemoryUse) -> wire.ObjectKind:
    """Return what grew most."""
    assert use.kinds[0].grown_bytes > 0
    return use.kinds[0]


class Trainer:
    """Something of a script that holds objects."""

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.seen: dict[int, Any] = {}


def test_tensors_that_a_variable_of_a_function_keeps_are_named(training: Training) -> None:
    """By shape, dtype and number, by the line that made them, and by the variable."""

    def main() -> wire.MemoryUse:
        kept = []

        def step() -> None:
            kept.append(torch.ones(64, 32, 256))  # made here

        return training.over(step)

    found = grown(main())
    assert (found.kind, found.dtype, found.shape, found.device) == ("tensor", "float32", (64, 32, 256), "cpu")
    assert (found.count, found.grown, found.grown_bytes) == (5, 3, 3 * 64 * 32 * 256 * 4)
    assert found.made == here(test_tensors_that_a_variable_of_a_function_keeps_are_named, "# made here")
    assert found.holder == "list `kept` of main()"


def test_arrays_that_an_attribute_keeps_are_named(training: Training) -> None:
    """Also where they are packed into tuples in tuples, which the collector forgets."""
    trainer = Trainer()
    # Python has a dictionary of its attributes from now on.
    vars(trainer)

    def step() -> None:
        trainer.kept.append((0, (np.ones((300, 100)), len(trainer.kept))))  # made here
        gc.collect()

    found = grown(training.over(step))
    assert (found.kind, found.dtype, found.shape, found.grown) == ("array", "float64", (300, 100), 3)
    assert found.made == here(test_arrays_that_an_attribute_keeps_are_named, "# made here")
    assert found.holder == "list `kept` of Trainer"


def test_what_a_module_keeps_is_named(training: Training) -> None:
    """By the name of its variable and its file; also where what there was has been frozen, as these tests do."""
    assert gc.get_freeze_count()
    try:
        found = grown(training.over(lambda: GLOBAL.append(torch.ones(100_000))))
    finally:
        GLOBAL.clear()
    assert found.holder == f"list `GLOBAL` of {NAME}"


def test_what_a_class_keeps_is_named(training: Training) -> None:
    """Whatever it is kept in."""

    class Shelf:
        kept: ClassVar[list[Any]] = []

    found = grown(training.over(lambda: Shelf.kept.append({"tensor": torch.ones(100_000)})))
    assert found.holder == "list `kept` of class Shelf"


def closure(first: Any) -> Callable[[Any], None]:
    kept = [first]

    def keep(each: Any) -> None:
        kept.append(each)

    return keep


def generator(first: Any) -> Callable[[Any], None]:
    def gather() -> Generator[None, Any, None]:
        kept = [first]
        while True:
            kept.append((yield))

    gathering = gather()
    next(gathering)
    return gathering.send


class Slotted:
    __slots__ = ("kept",)

    def __init__(self, first: Any) -> None:
        self.kept = {0: first}

    def keep(self, each: Any) -> None:
        self.kept[len(self.kept)] = each


class Chain:
    """Each of them holds the next one, and a tensor."""

    def __init__(self, first: Any) -> None:
        self.tensor = first
        self.last = self
        self.next: Chain | None = None

    def keep(self, each: Any) -> None:
        self.last.next = self.last = Chain(each)


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (closure, "list `kept` of function keep"),
        (generator, "list in a variable of gather()"),
        (lambda first: Slotted(first).keep, "dict `kept` of Slotted"),
        (lambda first: Chain(first).keep, "`tensor` of Chain"),
    ],
    ids=["closure", "generator", "slot", "attribute"],
)
def test_whatever_holds_an_object_is_named(training: Training, make: Callable[[Any], Any], place: str) -> None:
    """The variable of a function that has returned or rests, the slot of an object, and its attribute."""
    keep = make(torch.ones(3))
    assert grown(training.over(lambda: keep(torch.ones(100_000)))).holder == place


def test_bytes_are_named_by_their_dictionary(training: Training) -> None:
    """The collector knows neither them nor the dictionary, which is the variable of a function."""

    def main() -> wire.MemoryUse:
        blobs: dict[int, bytes] = {}

        def step() -> None:
            blobs[len(blobs)] = bytes(500_000)

        return training.over(step)

    found = grown(main())
    assert (found.kind, found.type, found.grown) == ("object", "bytes", 3)
    assert found.holder == "dict `blobs` of main()"


def test_python_objects_are_named_by_their_type(training: Training) -> None:
    """Where there are no tensors that grew."""
    kept: list[Trainer] = []
    found = training.over(lambda: kept.extend(Trainer() for _ in range(2_000)))
    kinds = {each.type: each.grown for each in found.kinds}
    assert kinds["Trainer"] == 6_000
    assert found.object_grown > 6_000 * 100


class Sample:
    """Something of which there come many."""

    def __init__(self, number: int) -> None:
        self.fields = {"number": number, "values": [number] * 10}  # made here
        self.tensor: Any = None


def test_objects_are_named_by_their_line_and_by_what_holds_all_of_them(training: Training) -> None:
    """Not by an old object of that type, by the memory of the census, or by an attribute of an object that came too."""
    old = [{"number": [each]} for each in range(2_000)]

    def main() -> wire.MemoryUse:
        seen: list[Sample] = []

        def step() -> None:
            seen.extend(Sample(each) for each in range(300))

        return training.over(step)

    # The collector has seen these, and nothing of the steps.
    gc.collect()
    use = main()
    found = next(each for each in use.kinds if each.type == "dict" and each.grown > 800)
    assert found.made == here(Sample, "# made here")
    assert found.holder == "list `seen` of main()"
    assert len(old) == 2_000


def test_tensors_in_objects_that_came_are_named_by_what_holds_these(training: Training) -> None:
    """Of an object that was there before, the attribute is the place."""

    def main() -> wire.MemoryUse:
        seen = []

        def step() -> None:
            sample = Sample(0)
            sample.tensor = torch.ones(100_000)
            seen.append(sample)

        return training.over(step)

    assert grown(main()).holder == "list `seen` of main()"


def test_a_closure_is_named_though_there_come_functions_too(training: Training) -> None:
    """Each of which holds what is its own."""

    def made() -> Callable[[], object]:
        seen: list[Any] = []
        return lambda: seen.append((torch.ones(100_000), lambda: None))

    step = made()
    assert grown(training.over(step)).holder == "list `seen` of function <lambda>"


def test_memory_of_c_is_told_from_python_s(training: Training) -> None:
    """What `malloc` has given out and nobody frees."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    given: list[int] = []

    def step() -> None:
        given.append(library.malloc(8 << 20))
        ctypes.memset(given[-1], 1, 8 << 20)

    use = training.over(step)
    for each in given:
        library.free(each)
    assert use.resident is not None
    assert use.resident.heap_grown == pytest.approx(24 << 20, rel=0.05)
    assert sentence(use).startswith("not Python: the C heap grew by 24 MiB in 3 steps")


def test_of_a_loop_that_keeps_nothing_nothing_grows(training: Training) -> None:
    """Its tensors are others at each boundary, and as many, also where their shapes differ."""
    sizes = iter(range(10_000, 90_000, 10_000))
    batch = [torch.ones(1, 2)]
    without_memory = []

    def step() -> None:
        batch[0] = torch.ones(next(sizes), 2)
        without_memory.append(torch.ones(1000, 1000, device="meta"))

    use = training.over(step)
    assert sentence(use) == "nothing grew in 3 steps"
    # Neither are the lists of the census.
    assert use.object_grown < 16 << 10


def test_shapes_that_differ_are_one_growth(training: Training) -> None:
    """Batches of different lengths that are kept."""
    sizes = iter(range(10_000, 90_000, 10_000))
    kept: list[Any] = []
    found = grown(training.over(lambda: kept.append(torch.ones(next(sizes), 2))))
    assert (found.shape, found.grown, found.grown_bytes) == ((None, 2), 3, (30_000 + 40_000 + 50_000) * 8)


def test_views_count_once_and_a_part_has_all_of_its_memory(training: Training) -> None:
    """Who keeps one row of a large tensor keeps the tensor."""
    kept: list[Any] = []

    def step() -> None:
        large = torch.ones(1000, 1000)
        kept.extend([large[0], large[0, :1]])

    found = grown(training.over(step))
    # The tensor itself is kept by its views.
    assert (found.shape, found.grown, found.grown_bytes) == ((1000, 1000), 3, 12_000_000)


def test_of_tensors_with_the_same_memory_the_largest_is_said(training: Training) -> None:
    """Whichever was made first."""
    kept: list[Any] = []

    def step() -> None:
        memory: Any = torch.ones(1000, 1000).untyped_storage()
        kept.extend([torch.empty(0).set_(memory, 0, shape, (1,) * len(shape)) for shape in ((1,), (1000, 1000), (2,))])

    found = grown(training.over(step))
    assert (found.shape, found.grown, found.grown_bytes) == ((1000, 1000), 3, 12_000_000)


def test_a_tensor_that_wraps_another_one_has_no_memory_of_its_own(training: Training) -> None:
    """As those of quantized and sharded models do, whose class has operators of its own."""

    class Wrapping(torch.Tensor):
        inner: Any

        @staticmethod
        def __new__(cls, inner: Any) -> Any:
            made: Any = torch.Tensor._make_wrapper_subclass(cls, inner.shape)
            made.inner = inner
            return made

        @classmethod
        def __torch_dispatch__(cls, *_: Any, **__: Any) -> Any:
            raise AssertionError("an operator")

    kept: list[Any] = []
    use = training.over(lambda: kept.append(Wrapping(torch.ones(100_000))))
    assert use.tensor_grown == 3 * 400_000


def test_a_list_takes_what_its_items_take_in_it(training: Training) -> None:
    """There is no more of them, and one of them is larger."""
    numbers: list[int] = []

    def step() -> None:
        numbers.extend([7] * 100_000)  # made here

    use = training.over(step)
    (found,) = (each for each in use.kinds if each.type == "list")
    assert found.grown_bytes > 3 * 800_000
    assert found.made == here(test_a_list_takes_what_its_items_take_in_it, "# made here")
    assert 0 < use.census_ns < 60e9
    assert 0 < use.elapsed_ns < 60e9


def test_a_tensor_with_the_graph_of_its_making_is_told(training: Training) -> None:
    """Autograd keeps more than Python sees."""
    kept: list[Any] = []
    weight = torch.ones(300, 300, requires_grad=True)
    found = grown(training.over(lambda: kept.append((weight * 2).relu())))
    assert found.graphs == found.grown == 3


def test_a_loss_with_its_graph_is_told_however_small_it_is(training: Training) -> None:
    """Though what it takes is less than what is said of other tensors."""
    losses: list[Any] = []
    weight = torch.ones(300, 300, requires_grad=True)

    def step() -> None:
        loss = weight.square().mean()
        loss.backward()
        losses.append(loss)

    use = training.over(step)
    (found,) = (each for each in use.kinds if each.kind == "tensor" and each.graphs)
    assert (found.shape, found.grown, found.graphs) == ((), 3, 3)
    assert sentence(use).endswith("each with its graph")


def test_what_is_detached_has_no_graph_though_the_newest_output_has(training: Training) -> None:
    """The output of the present step shares its memory with what is kept of it."""
    weight = torch.ones(300, 300, requires_grad=True)
    kept: list[Any] = []
    present: list[Any] = [None]

    def step() -> None:
        present[0] = weight * 2
        kept.append(present[0].detach())

    found = grown(training.over(step))
    assert (found.grown, found.graphs) == (3, 0)


def test_nothing_is_kept_alive(training: Training) -> None:
    """Not by the censuses, and not by the copies of variables that Python makes for whoever reads them."""
    gone: list[weakref.ref[Any]] = []
    alive: list[bool] = []

    def loop() -> None:
        # It has no memory of its own, of which torch's error says so.
        sparse = torch.eye(3).to_sparse()
        training.ask(2)
        for _ in range(6):
            batch = torch.ones(1000)
            gone.append(weakref.ref(batch))
            training.boundary()
            del batch
            alive.append(gone[-1]() is not None)
        del sparse

    loop()
    assert alive == [False] * 6
    assert training.ask(2) is not None


def test_the_variables_of_a_function_that_reads_them_stay_as_they_are(training: Training) -> None:
    """`locals()` gives the same dictionary each time, until Python 3.13: nothing of ours may change it."""
    told: list[dict[str, Any]] = []

    def loop() -> None:
        number = 1
        before = locals()
        training.ask(2)
        for _ in range(6):
            number += 1
            training.boundary()
        told.append(dict(before))

    loop()
    assert training.ask(2) is not None
    assert told[0]["number"] == 1


class Loud(type):
    """A class of classes all of whose methods are the script's."""

    def __hash__(cls) -> int:
        raise AssertionError("hash of a class")

    def __eq__(cls, other: object) -> bool:
        raise AssertionError("comparison of a class")

    def __getattribute__(cls, name: str) -> Any:
        raise AssertionError(f"attribute {name} of a class")


def test_no_code_of_an_object_runs(training: Training) -> None:
    """Whatever its class answers to."""
    ran: list[str] = []

    class Watched(list[Any]):
        def __getattribute__(self, name: str) -> Any:
            ran.append(name)
            return super().__getattribute__(name)

        def __repr__(self) -> str:
            ran.append("repr")
            return ""

        def __len__(self) -> int:
            ran.append("len")
            return 1

        def __iter__(self) -> Any:
            ran.append("iter")
            return super().__iter__()

        def __sizeof__(self) -> int:
            ran.append("sizeof")
            return 1

        def __del__(self) -> None:
            ran.append("del")

        @property
        def __class__(self) -> Any:
            ran.append("class")
            return int

        @__class__.setter
        def __class__(self, kind: Any) -> None: ...

    class Tensors(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *given: Any, **named: Any) -> Any:
            ran.append("torch function")
            return super().__torch_function__(*given, **named)

    silent = Loud("Silent", (), {})
    holders = [Watched()]
    extra = [type.__call__(silent), torch.ones(3).as_subclass(Tensors)]
    cycle: list[Any] = [Watched()]
    cycle.append(cycle)
    del cycle
    ran.clear()
    # Between the censuses the collector is the script's own, and may come to the cycle.
    threshold = gc.get_threshold()
    gc.set_threshold(1_000_000)
    try:
        use = training.over(lambda: list.append(holders[0], torch.ones(100_000)))
    finally:
        gc.set_threshold(*threshold)
    assert ran == []
    assert grown(use).grown == 3
    assert extra


def test_the_collector_does_not_run_within_a_census(training: Training) -> None:
    """It would run finalizers of the script's, and take its time; by the calls that each of its runs came out of."""
    modules: list[set[str]] = []

    def collecting(_: str, __: dict[str, int]) -> None:
        frame: FrameType | None = sys._getframe(1)
        modules.append(set())
        while frame is not None:
            modules[-1].add(frame.f_globals.get("__name__", ""))
            frame = frame.f_back

    threshold = gc.get_threshold()
    gc.callbacks.append(collecting)
    # With each new container.
    gc.set_threshold(1)
    try:
        training.over(lambda: None)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collecting)
    assert modules
    assert not [each for each in modules if "ddptop.agent.rank.inspection.memory.objects" in each]
    assert gc.isenabled()


def test_the_record_of_the_script_goes_on(training: Training) -> None:
    """Whether it has begun before, or begins within these steps; then there is no census, and that is said."""
    tracemalloc.start(3)
    try:
        training.ask(2)
        training.boundary()
        assert tracemalloc.get_traceback_limit() == 3
    finally:
        tracemalloc.stop()
    with pytest.raises(Unanswered, match=r"^its script uses tracemalloc itself$"):
        training.ask(2)
    training.ask(training.completed + 2, token="b")
    training.boundary()
    try:
        tracemalloc.start()
        for _ in range(3):
            training.boundary()
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    assert tracemalloc.start is _tracemalloc.start
    with pytest.raises(Unanswered, match=r"^its script uses tracemalloc itself$"):
        training.ask(training.completed, token="b")
    assert not training.faults.count


def test_a_script_that_may_record_unnoticed_is_not_looked_at(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the function that begins a record by a name of its own, as by `from tracemalloc import start`."""
    training.ask(2)
    with monkeypatch.context() as patched:
        patched.setitem(globals(), "start", tracemalloc.start)
        training.boundary()
    assert not tracemalloc.is_tracing()
    with pytest.raises(Unanswered, match=r"^its script uses tracemalloc itself$"):
        training.ask(2)


@pytest.mark.parametrize("steps", [0, 2])
def test_the_exception_of_a_signal_handler_reaches_the_script(training: Training, steps: int) -> None:
    """From within the first census or the second one; nothing is recorded any more, and another one is taken."""

    class Interrupted(RuntimeError):
        pass

    def handle(*_: object) -> None:
        raise Interrupted

    training.ask(2, 2)
    for _ in range(steps):
        training.boundary()
    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        with pytest.raises(Interrupted):
            training.boundary()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not tracemalloc.is_tracing()
    assert gc.isenabled()
    with pytest.raises(Unanswered, match="Interrupted"):
        training.ask(2, 2)
    assert not training.faults.count
    training.ask(0, 1, token="b")
    for _ in range(2):
        training.boundary()
    assert training.ask(0, 1, token="b")


def test_nothing_is_recorded_before_and_after(training: Training) -> None:
    """Python's record of allocations lasts for these steps alone, and the collector is as it was."""
    training.ask(3, 2)
    recording = []
    for _ in range(6):
        training.boundary()
        recording.append(tracemalloc.is_tracing())
    assert recording == [False, True, True, False, False, False]
    assert gc.isenabled()
    assert not training.censuses.is_armed


def test_whoever_asks_too_late_is_told(training: Training) -> None:
    """Before or after the question was heard; and one without a first step is never late."""
    training.completed = 4
    with pytest.raises(Passed):
        training.ask(5)
    training.ask(6, token="b")
    training.completed += 2
    training.boundary()
    with pytest.raises(Passed):
        training.ask(6, token="b")
    training.ask(0, 2, token="c")
    for _ in range(3):
        training.boundary()
    found = training.ask(0, 2, token="c")
    assert found is not None
    assert (found.first, found.last) == (9, 10)


def test_what_somebody_asks_for_comes_before_what_nobody_has(training: Training) -> None:
    """The observer's own question waits, and goes on asking."""
    training.ask(0, 4, token="own")
    training.boundary()
    training.ask(3, 2, token="a")
    for _ in range(6):
        assert training.ask(0, 4, token="own") is None
        training.boundary()
        if found := training.ask(3, 2, token="a"):
            assert (found.first, found.last) == (3, 4)
            break
    else:
        raise AssertionError("no census")


def test_what_is_cancelled_ends_with_the_step(training: Training) -> None:
    """Whatever had begun."""
    training.ask(2, 9)
    training.boundary()
    assert tracemalloc.is_tracing()
    training.censuses.cancel("a")
    training.boundary()
    assert not tracemalloc.is_tracing()
    assert not training.censuses.is_armed
    with pytest.raises(Unanswered, match="cancelled"):
        training.ask(2, 9)


def test_what_the_agent_s_thread_does_at_a_boundary_is_not_lost(training: Training) -> None:
    """It cancels while the training thread leaves the boundary, and asks anew."""
    censuses = training.censuses

    def at_the_next(act: Callable[[], object]) -> None:
        """Act once, between the last look of the training thread at what is asked and its note that nothing is."""

        class Late(Censuses):
            def __setattr__(self, name: str, value: Any) -> None:
                if name == "is_armed" and value is False:
                    self.__class__ = Censuses  # type: ignore[assignment]
                    act()
                object.__setattr__(self, name, value)

        censuses.__class__ = Late

    training.ask(2, 9)
    at_the_next(lambda: censuses.cancel("a"))
    training.boundary()
    assert tracemalloc.is_tracing()
    training.boundary()
    assert not tracemalloc.is_tracing()
    training.ask(4, 1, token="b")
    training.boundary()
    at_the_next(lambda: censuses.ask(wire.Memory(1, "c", 0, 6, 1), training.completed - 1))
    training.boundary()
    assert not tracemalloc.is_tracing()
    for _ in range(2):
        training.boundary()
    assert training.ask(6, 1, token="c")


def test_a_child_that_is_forked_meanwhile_records_nothing(training: Training) -> None:
    """A data worker has no such steps; the rank itself goes on."""
    training.ask(2, 2)
    training.boundary()
    assert tracemalloc.is_tracing()
    child = os.fork()
    if not child:
        training.censuses.abandon()
        os._exit(tracemalloc.is_tracing() or training.censuses.is_armed)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    training.boundary()
    training.boundary()
    assert training.ask(2, 2)
    assert not tracemalloc.is_tracing()


def test_the_end_of_the_script_is_the_end_of_a_census(training: Training) -> None:
    """Nobody waits for steps that are not made."""
    training.ask(9)
    training.censuses.close()
    with pytest.raises(Unanswered, match="has ended before these steps"):
        training.ask(9)


def test_the_kinds_of_resident_memory_are_the_system_s(training: Training) -> None:
    """As another reader finds them, about."""
    use = training.over(lambda: None)
    told = psutil.Process().memory_full_info()
    assert use.resident is not None
    resident = use.resident.anonymous + use.resident.file + use.resident.shared
    assert resident == pytest.approx(told.rss, rel=0.1)


def test_what_was_freed_is_kept_by_the_heap_and_not_given_out(training: Training) -> None:
    """As blocks below another one that lives: resident memory stays, and the heap's own count says why."""
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    given: list[int] = []
    freed: list[int] = []
    size = 64 << 10

    def step() -> None:
        # Too small for maps of their own; each second one is freed.
        blocks = [library.malloc(size) for _ in range(400)]
        for each in blocks:
            ctypes.memset(each, 1, size)
        freed.extend(blocks[::2])
        given.extend(blocks[1::2])

    def last() -> None:
        while freed:
            library.free(freed.pop())

    steps = iter([step, step])
    use = training.over(lambda: next(steps, last)(), 1)
    for each in given:
        library.free(each)
    assert use.resident is not None
    assert use.resident.heap_kept_grown > 20 << 20
    assert use.resident.anonymous_grown < 4 << 20


def test_no_call_of_a_census_is_an_event_for_each_object(training: Training) -> None:
    """Of the hooks of `sys.addaudithook`, of which a library may have brought one along: each event runs their code."""
    events = 0
    counting = [True]

    def hook(*_: object) -> None:
        nonlocal events
        events += counting[0]

    # It stays for as long as the process lives.
    sys.addaudithook(hook)
    objects = [[number] for number in range(50_000)]
    try:
        training.over(lambda: None)
    finally:
        counting.clear()
        counting.append(False)
    assert events < len(objects) / 10


def ticking(training: Training, seconds: float) -> None:
    """Have the clock go on by so much at each look."""

    def clock() -> float:
        training.now += seconds
        return training.now

    training.censuses._clock = clock


def test_both_censuses_end_in_the_time_that_is_given(training: Training) -> None:
    """What is known by then is said, with how much was looked at; of the rest nobody says that it grew."""
    objects = [{"a": number, "b": [number]} for number in range(60_000)]
    kept: list[Any] = []
    ticking(training, 0.001)
    training.most_ms = 1_000

    def step() -> None:
        kept.append(torch.ones(100_000))
        objects.extend({} for _ in range(9))

    use = training.over(step)
    assert not use.is_whole
    assert any("in this time" in remark for remark in use.remarks)
    # What the first one has taken is measured by another clock than this.
    assert training.held_s < 1.5 * training.most_ms / 1e3
    assert "not Python" not in sentence(use)


def test_a_census_ends_within_a_quarter_of_the_timeout_of_a_group(training: Training) -> None:
    """The other ranks wait in its collectives."""
    ticking(training, 0.002)
    training.timeout_s = 2.0
    training.over(lambda: None)
    assert training.held_s < 0.7


def test_a_census_that_is_cancelled_ends_at_once(training: Training) -> None:
    """By whoever asks for it, while the training thread counts."""
    objects = [[number] for number in range(60_000)]
    training.ask(2)
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        if looks == 20:
            training.censuses.cancel("a")
        return 0.0

    training.censuses._asked.clock = clock  # type: ignore[union-attr]
    training.boundary()
    assert looks < 30 < len(objects)
    assert not tracemalloc.is_tracing()
    with pytest.raises(Unanswered, match="cancelled"):
        training.ask(2)


def test_a_census_that_nobody_asks_for_again_ends(training: Training) -> None:
    """Its observer was killed: the rank records nothing for anybody from the next step on."""
    training.ask(2, 9)
    training.boundary()
    training.now += 3.9
    training.boundary()
    assert tracemalloc.is_tracing()
    training.now += 0.2
    training.boundary()
    assert not tracemalloc.is_tracing()
    assert not training.censuses.is_armed


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_what_torch_cannot_count_is_left_out_and_said(training: Training) -> None:
    """Tensors of tensors are counted without their sizes; nothing of a subclass runs."""
    ran: list[str] = []

    class Own(torch.Tensor):
        def numel(self) -> int:
            ran.append("numel")
            raise RuntimeError

        def untyped_storage(self) -> Any:
            ran.append("untyped_storage")
            raise RuntimeError

        @property
        def layout(self) -> Any:  # type: ignore[override]
            ran.append("layout")
            raise RuntimeError

    kept: list[Any] = [torch.eye(3).to_sparse(), torch.nested.nested_tensor([torch.ones(300_000), torch.ones(500_000)])]
    use = training.over(lambda: kept.append(torch.ones(100_000).as_subclass(Own)))
    assert ran == []
    assert (grown(use).type, grown(use).grown, grown(use).shape) == ("Own", 3, (100_000,))
    assert any(each.kind == "tensor" and each.bytes == 3_200_000 and each.shape == (None,) for each in use.kinds)
    assert use.remarks == ("torch does not say the memory of 1 tensor of sparse_coo",)
    assert use.is_whole


def test_a_rank_says_that_it_is_held_for_its_census_and_since_when(training: Training) -> None:
    """For as long as it is, and no longer."""
    said: list[tuple[str, bool]] = []

    class Said(Told):
        def wait(self, timeout: float | None = None) -> bool:
            said.append((training.gate.purpose, training.gate.held_up is not None))
            return True

    training.gate.is_told = Said()
    training.over(lambda: None)
    assert said == [("counting memory", True)] * 2
    assert training.gate.purpose == ""
