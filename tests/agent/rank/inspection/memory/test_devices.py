"""The memory of an accelerator: torch's numbers and history of it, and an event when it is full; torch is a fake."""

from __future__ import annotations

import contextlib
import gc
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from support import late
from support.bases import marked
from support.harness import until

from ddptop.agent import wire
from ddptop.agent.rank.commands.gate import Gate
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.inspection.memory.censuses import Censuses
from ddptop.agent.rank.inspection.memory.devices import Fullness
from ddptop.agent.run.script.sources import Sources

if TYPE_CHECKING:
    import torch

_imports = late.imports(globals())

MIB = 1 << 20


class Cuda:
    """Torch's module of a device, as far as it is asked."""

    def __init__(self, *, recording: bool = False, backend: str = "native") -> None:
        self.allocated = MIB
        self.recording = recording
        self.backend = backend
        self.calls: list[tuple[Any, ...]] = []
        self.observers: list[Callable[[int, int, int, int], None]] = []
        self.memory = SimpleNamespace(_record_memory_history=self._record, _snapshot=self._snapshot)

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def get_allocator_backend(self) -> str:
        return self.backend

    def device_count(self) -> int:
        return 2

    def memory_stats(self, index: int) -> dict[str, int]:
        self._check("native", "cudaMallocAsync")
        names = ("reserved_bytes.all.current", "allocated_bytes.all.current", "allocated_bytes.all.peak")
        return dict(zip(names, (8 * MIB, self.allocated, 4 * MIB), strict=True)) if index == 1 else {}

    def is_history_enabled(self) -> bool:
        self._check("native")
        return self.recording

    def attach(self, observer: Callable[[int, int, int, int], None]) -> None:
        self._check("native")
        self.observers.append(observer)

    def begin_or_end(self, enabled: str | None, context: str | None = None, stacks: str | None = None) -> None:
        self._check("native")
        self.calls.append((enabled, context, stacks))
        self.recording = enabled is not None

    def _record(self, enabled: str | None = "all", **more: Any) -> None:
        # As torch does: the function is looked up with each call.
        functions: Any = torch._C
        functions._cuda_record_memory_history(enabled, more.get("context"), more.get("stacks"))

    def _snapshot(self) -> dict[str, list[int]]:
        self._check("native")
        return {"segments": [1, 2]}

    def _check(self, *backends: str) -> None:
        if self.backend not in backends:
            raise RuntimeError(f"{self.backend} does not yet support that")


@contextlib.contextmanager
def device(monkeypatch: pytest.MonkeyPatch, **more: Any) -> Iterator[Cuda]:
    cuda = Cuda(**more)
    functions: Any = torch._C
    with monkeypatch.context() as patched:
        patched.setattr(torch, "cuda", cuda)
        for name, function in (
            ("_cuda_isHistoryEnabled", cuda.is_history_enabled),
            ("_cuda_record_memory_history", cuda.begin_or_end),
            ("_cuda_attach_out_of_memory_observer", cuda.attach),
        ):
            patched.setattr(functions, name, function, raising=False)
        yield cuda
        assert functions._cuda_record_memory_history == cuda.begin_or_end


class Training:
    """A loop whose boundaries call the censuses."""

    def __init__(self, folder: Path) -> None:
        # A census looks through what is not frozen: of torch's hundred thousands of objects once is enough.
        gc.freeze()
        self.completed = 0
        self.faults = Faults()
        sources = Sources(str(Path(__file__).parent), "/")
        self._censuses = Censuses(
            2, folder, cast(Any, SimpleNamespace(eventful=7)), Gate(), lambda: sources, self.faults, lambda: 0.0
        )

    def use(self, number: int = 7, step: Callable[[], object] = lambda: None) -> wire.MemoryUse:
        """Return the censuses before and behind two steps; `step` is made in the first one."""
        command = wire.Memory(1, "a", number, self.completed + 2, 2)
        self._censuses.ask(command, self.completed)
        for count in range(3):
            self.completed += 1
            self._censuses.boundary(self.completed)
            if not count:
                step()
        until(lambda: self._censuses.ask(command, self.completed), "the snapshot")
        assert not self.faults.count, self.faults.last
        return cast(wire.MemoryUse, self._censuses.ask(command, self.completed))


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(marked(tmp_path) / "memory")


@pytest.mark.parametrize("recording", [False, True])
def test_the_allocator_is_asked_and_its_history_kept(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, recording: bool
) -> None:
    """Over these steps alone; where the script has it kept, that goes on."""
    with device(monkeypatch, recording=recording) as cuda:

        def step() -> None:
            assert cuda.recording
            cuda.allocated += 4096

        use = training.use(step=step)
        assert cuda.recording is recording
        assert cuda.calls == ([] if recording else [("all", "alloc", "python"), (None, None, None)])
    (found,) = use.devices
    assert (found.device, found.allocated, found.allocated_grown) == ("cuda:1", MIB + 4096, 4096)
    assert (found.reserved, found.reserved_grown, found.peak) == (8 * MIB, 0, 4 * MIB)
    assert found.snapshot == str(tmp_path / "memory/0007/rank-2.pickle")
    assert pickle.loads(Path(found.snapshot).read_bytes()) == {"segments": [1, 2]}


def test_the_snapshot_is_not_among_the_objects_that_came(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has some for each event of the history."""
    with device(monkeypatch) as cuda:
        cuda.memory._snapshot = lambda: [{"addr": number} for number in range(20_000)]
        use = training.use()
    assert len(pickle.loads(Path(use.devices[0].snapshot).read_bytes())) == 20_000
    assert use.object_grown < MIB


def test_a_snapshot_that_cannot_be_written_is_said_and_leaves_no_file(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The census stands without it."""
    with device(monkeypatch) as cuda:
        cuda.memory._snapshot = lambda: {"segments": [bytes(MIB), lambda: None]}
        (found,) = training.use().devices
    assert found.snapshot == ""
    assert found.problem.startswith("its snapshot cannot be written: ")
    assert not list((tmp_path / "memory/0007").glob("[!.]*"))


def test_a_history_that_the_script_begins_meanwhile_goes_on(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the script's from then on."""
    with device(monkeypatch) as cuda:
        use = training.use(step=cuda.memory._record_memory_history)
        assert cuda.recording
    assert use.devices[0].snapshot


def test_what_the_observer_asks_by_itself_keeps_no_history(
    training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers are enough for a sentence."""
    with device(monkeypatch) as cuda:
        training.use(number=0)
        assert cuda.calls == []
    assert not (tmp_path / "memory").exists()


@pytest.mark.parametrize(("backend", "number"), [("cudaMallocAsync", 1), ("pluggable", 0)])
def test_another_allocator_than_torch_s_says_what_it_can(
    training: Training, monkeypatch: pytest.MonkeyPatch, backend: str, number: int
) -> None:
    """No history, and of one that the script brings nothing; the rest of the census stands, and nothing is a fault."""
    fullness = Fullness(lambda text, level: None, training.faults)
    with device(monkeypatch, backend=backend) as cuda:
        use = training.use()
        fullness.take("cuda:1", 1, MIB)
        assert (cuda.calls, cuda.observers) == ([], [])
    assert [each.snapshot for each in use.devices] == [""] * number
    assert use.kinds
    assert not training.faults.count


def test_a_full_device_is_an_event(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each step, with what was wanted, and the memory at the newest steps; torch is asked to call once."""
    events: list[tuple[str, str]] = []
    fullness = Fullness(lambda text, level: events.append((text, level)), training.faults)
    with device(monkeypatch) as cuda:
        fullness.take(None, 0, MIB)
        fullness.take("cpu", 1, MIB)
        assert cuda.observers == []
        for step in (3, 3, 5):
            fullness.take("cuda:1", step, step * MIB)
        fullness.take("cuda:1", 6, None)
        (observer,) = cuda.observers
        for _ in range(2):
            observer(1, 64 * MIB, 80 * MIB, 2 * MIB)
        (event,) = events
        assert event == (
            "out of memory on cuda:1: 64 MiB more were wanted, 2 MiB of 80 MiB free; tensors have 1 MiB, "
            "reserved are 8 MiB; before: 3 MiB at step 3, 5 MiB at step 5",
            "error",
        )
        for step in range(6, 14):
            fullness.take("cuda:1", step, step * MIB)
        observer(1, MIB, 80 * MIB, 0)
        assert len(events) == 2
        # The newest ones alone.
        assert re.findall(r"at step (\d+)", events[1][0]) == ["8", "9", "10", "11", "12", "13"]


def test_an_error_of_the_observer_is_no_error_of_the_training(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch would raise it in place of its own, which the script may catch."""

    def notify(text: str, level: str) -> None:
        raise ValueError(text)

    fullness = Fullness(notify, training.faults)
    with device(monkeypatch) as cuda:
        fullness.take("cuda:1", 3, MIB)
        cuda.observers[0](1, MIB, 80 * MIB, 0)
    assert training.faults.count == 1
