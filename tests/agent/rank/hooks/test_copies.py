"""Copies to a device as a part of a step, with torch's own tensors; its `meta` device stands for the device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support import late

from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.hooks import copies, patches
from ddptop.agent.rank.records import meter
from ddptop.agent.rank.records.stamps import COPY, DATA, FORWARD, Moment, Stamps

if TYPE_CHECKING:
    import torch
    from torch._dynamo.testing import CompileCounterWithBackend

_imports = late.imports(globals())

NAMES = ("to", "cuda", "copy_")


class Ticking:
    """A clock on which every stamp is one later than the last."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


@pytest.fixture
def noted() -> list[tuple[str, Exception]]:
    """What the hooks reported as their own errors."""
    return []


@pytest.fixture
def stamps(_imports: None, noted: list[tuple[str, Exception]]) -> Iterator[Stamps]:
    """Stamps of a step that has begun, and torch with our hooks; torch is as it was afterwards."""
    stamps = Stamps(Ticking(), lambda: 0)
    stamps.enter(DATA)
    stamps.leave()
    copies.watch(torch, stamps, lambda name, error: noted.append((name, error)), host={"cpu"})
    yield stamps
    for name in NAMES:
        delattr(torch.Tensor, name)


def copied(stamps: Stamps) -> int:
    """Return how many copies of the step are stamped."""
    return sum(phase == COPY for _, phase in stamps._current.marks)


@pytest.mark.parametrize(
    "copy",
    [
        lambda tensor: tensor.to("meta"),
        lambda tensor: tensor.to(torch.device("meta"), non_blocking=True),
        lambda tensor: tensor.to(device="meta", dtype=torch.float64),
        lambda tensor: tensor.to(torch.empty(1, device="meta")),
        lambda tensor: tensor.to("meta", copy=True),
        lambda tensor: torch.nn.Parameter(tensor).to("meta"),
        lambda tensor: torch.empty(2, device="meta").copy_(tensor),
    ],
)
def test_every_way_to_copy_is_seen_once(stamps, copy):
    """Whatever form the call has, one copy is stamped, and its result is torch's own."""
    assert copy(torch.ones(2)).device.type == "meta"
    assert copied(stamps) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda tensor: tensor.to(torch.float64),
        lambda tensor: tensor.to("cpu"),
        lambda tensor: tensor.to("cpu", torch.float16),
        lambda tensor: tensor.to(tensor),
        lambda tensor: torch.empty(2).copy_(tensor),
    ],
)
def test_what_stays_on_its_side_is_no_copy(stamps, call):
    """Conversions of a type, and copies within the host or the device, leave the phase alone."""
    call(torch.ones(2))
    assert copied(stamps) == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda tensor: tensor.to(torch.float64),
        lambda tensor: tensor.to("meta", torch.float16),
        lambda tensor: tensor.copy_(torch.ones(2, device="meta")),
    ],
)
def test_what_is_on_the_device_is_not_copied_there(stamps, call):
    """Conversions and copies within the device leave the phase alone."""
    call(torch.ones(2, device="meta"))
    assert copied(stamps) == 0


def test_a_copy_is_a_phase_of_its_own_and_the_phase_around_it_goes_on(stamps):
    """In a record the copy is its own time, neither `other` nor that of the phase in which it was made."""
    stamps.cut(1)
    stamps.turn(FORWARD)
    torch.ones(2).to("meta")
    stamps.cut(2)
    record = meter.record(stamps.finished[1])
    # Each stamp is one later: forward before and after the copy, which is one long.
    assert (record.copy_ns, record.forward_ns, record.other_ns, record.wall_ns) == (1, 2, 1, 4)
    assert meter.record(stamps.finished[0]).copy_ns is None


def test_before_the_training_nothing_is_stamped(noted):
    """A model that goes to its device before the first step does not begin the first step."""
    untouched = Stamps(Ticking(), lambda: 0)
    copies.watch(torch, untouched, lambda name, error: noted.append((name, error)), host={"cpu"})
    try:
        torch.nn.Linear(2, 2).to("meta")
    finally:
        for name in NAMES:
            delattr(torch.Tensor, name)
    assert not untouched.begun


def test_other_threads_make_no_phases(stamps):
    """Phases are those of the main thread; a thread that fetches ahead copies beside it."""
    thread = threading.Thread(target=lambda: torch.ones(2).to("meta"))
    thread.start()
    thread.join()
    assert copied(stamps) == 0


def test_stamps_of_a_step_are_bounded_and_begin_anew_with_the_next(stamps):
    """A thousand copies in a step cost no thousand stamps."""
    for _ in range(1000):
        torch.ones(1).to("meta")
    assert copied(stamps) == copies.MOST
    stamps.cut(1)
    torch.ones(1).to("meta")
    assert copied(stamps) == 1


def test_the_class_has_torchs_own_method():
    """Code that compares or keeps `torch.Tensor.to` meets the function it always met."""
    before = {name: getattr(torch.Tensor, name) for name in NAMES}
    copies.watch(torch, Stamps(), lambda *_: None)
    try:
        assert all(getattr(torch.Tensor, name) is method for name, method in before.items())
        seen: list[Any] = []

        class Told(torch.Tensor):
            """A subclass that hears which function of torch it is given to."""

            @classmethod
            def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen.append(func)
                return super().__torch_function__(func, types, args, kwargs or {})

        torch.ones(2).as_subclass(Told).to(torch.float64)
        assert before["to"] in seen
    finally:
        for name in NAMES:
            delattr(torch.Tensor, name)


def test_errors_are_torchs_own(stamps, noted):
    """A call that torch refuses is refused in its words, and leaves the phases as they were."""
    with pytest.raises(RuntimeError, match="no such device"):
        torch.ones(2).to("no such device")
    with pytest.raises(TypeError):
        torch.ones(2).to(object())  # type: ignore[call-overload]  # what is to be refused
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(2).to("cuda:4000")
    assert stamps.activity == "other"
    assert noted == []


def test_a_mode_of_the_script_that_raises_raises_no_more_often(stamps):
    """A mode that refuses everything but the call itself does not notice that the tensor was asked for its device."""
    from torch.overrides import TorchFunctionMode

    class Strict(TorchFunctionMode):
        """Allows conversions and nothing else."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is not torch.Tensor.to:
                raise AssertionError(func)
            return func(*args, **(kwargs or {}))

    tensor = torch.ones(2)
    with Strict():
        moved = tensor.to("meta")
    assert moved.device.type == "meta"


def test_a_failing_device_clock_raises_into_no_copy(stamps, noted):
    """After an illegal access every call to the device raises: the script gets torch's error, from torch."""

    class Broken:
        """The clock of a device that has failed."""

        def record(self) -> Moment | None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        def spans(self, moments: list[Moment | None]) -> list[int] | None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    stamps._current.clock = Broken()
    assert torch.ones(2).to("meta").device.type == "meta"
    assert [name for name, _ in noted] == ["Tensor.to", "Tensor.to"]
    assert stamps.activity == "other"


def test_compiled_functions_are_the_same(stamps):
    """The compiler sees through the hooks: one graph, without a break."""

    def convert(tensor: Any) -> Any:
        return tensor.to(torch.float64).copy_(torch.zeros(2)) + 1

    torch._dynamo.reset()
    backend = CompileCounterWithBackend("eager")
    torch.compile(convert, backend=backend, fullgraph=True)(torch.ones(2))
    assert backend.frame_count == 1
    assert copied(stamps) == 0


def test_the_hooks_come_with_the_first_use_of_a_device(monkeypatch):
    """A training on the CPU has none, with whatever build of torch; an error in them does not reach torch."""
    watched: list[Any] = []
    monkeypatch.setattr(copies, "watch", lambda *_: watched.append(1 / len(watched)))
    queued: list[Any] = []
    session: Any = SimpleNamespace(faults=Faults(), stamps=Stamps())
    cuda = SimpleNamespace(_lazy_call=queued.append)
    patches._copies(session, SimpleNamespace(_C=SimpleNamespace(), cuda=cuda))
    assert queued == []
    patches._copies(session, SimpleNamespace(_C=SimpleNamespace(_cuda_getDeviceCount=len), cuda=cuda))
    assert (len(queued), session.faults.count) == (1, 0)
    queued[0]()
    assert session.faults.count == 1
    watched.append(1.0)
    queued[0]()
    assert watched == [1.0, 1.0]
