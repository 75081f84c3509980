"""The work of one early step is counted, and nothing of the training is changed by that."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from support import late
from support.harness import until, write_script
from support.processes.ranks import observed

from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.inspection.work import arithmetic, counting
from ddptop.agent.rank.inspection.work.counting import Counting
from ddptop.agent.rank.records.device_time import Captures

if TYPE_CHECKING:
    from pathlib import Path

    import torch

_imports = late.imports(globals())

ROWS, IN, OUT = 7, 24, 40
WORK = 2 * 2 * ROWS * IN * OUT
"""Operations of a step: forward, and the gradient of the weight."""


class Training:
    """A loop whose boundaries call the counting, as a session does."""

    def __init__(self, device: str = "cpu") -> None:
        self.completed = 0
        self.device = device
        self.stamps = cast(Any, SimpleNamespace(eventful=10**9))
        self.faults = Faults()
        self.counting = Counting(self.stamps, self.faults)
        self.called: list[int] = []
        """Steps at whose ends something was to do."""
        torch.manual_seed(5)
        self.model: Any = torch.nn.Linear(IN, OUT)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.during: Callable[[int], object] = lambda step: None
        """Called in each step."""

    def step(self, number: int) -> None:
        for _ in range(number):
            self.during(self.completed + 1)
            self.model(torch.randn(ROWS, IN)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.completed += 1
            if self.counting.is_armed and self.completed >= self.stamps.eventful:
                self.called.append(self.completed)
                self.stamps.eventful = 10**9
                self.counting.boundary(self.completed, self.device)

    def until_counted(self) -> None:
        until(lambda: self.counting.flops is not None or self.faults.count > 0, "the work of a step")
        assert self.faults.last is None


@pytest.fixture(autouse=True)
def _captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process capture graphs, behind which nothing is counted."""
    monkeypatch.setattr(counting, "CAPTURES", Captures())


@pytest.fixture
def training() -> Training:
    made = Training()
    # The first boundary of a session is one at which something is to do.
    made.stamps.eventful = 0
    return made


def test_one_step_is_counted_once(training: Training) -> None:
    """Step 23, between its boundaries; nothing is called at the others, and the device of a CPU has no peak."""
    training.step(30)
    training.until_counted()
    assert training.counting.flops == WORK
    assert training.counting.peak is None
    training.step(500)
    assert training.called == [1, 22, 23]


def test_on_a_gpu_a_step_is_counted_behind_a_profile_alone(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unasked none is; once it is counted, another profile changes nothing."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "")
    training.device = "cuda:0"
    training.step(500)
    assert (training.called, training.counting.flops) == ([1, 22], None)
    training.counting.ask(510)
    training.step(20)
    training.until_counted()
    assert training.counting.flops == WORK
    assert training.called[2:] == [501, 512, 513]
    training.counting.ask(600)
    training.step(200)
    assert training.called[5:] == []


def test_the_training_is_the_same_bit_by_bit() -> None:
    """Parameters and the state of the generator, with and without."""

    def train(*, counted: bool) -> tuple[list[Any], Any]:
        training = Training()
        training.stamps.eventful = 0
        training.counting.is_armed = counted
        training.step(30)
        if counted:
            training.until_counted()
        return [each.detach() for each in training.model.parameters()], torch.get_rng_state()

    (with_it, seed), (without, other) = train(counted=True), train(counted=False)
    assert all(map(torch.equal, with_it, without))
    assert torch.equal(seed, other)


def test_nothing_is_said_in_the_output_of_the_script(training: Training, capfd: pytest.CaptureFixture[str]) -> None:
    """The observer says in the log of C++ that it begins; what the script says there is said before and after."""
    training.step(30)
    training.until_counted()
    assert capfd.readouterr() == ("", "")
    observer = torch.profiler.ExecutionTraceObserver().register_callback("/dev/null")
    observer.start()
    observer.unregister_callback()
    assert "Enabling Execution Trace Observer" in capfd.readouterr().err


def test_compiled_code_stays_as_it_is(training: Training) -> None:
    """Nothing is compiled anew, and the next steps run what was compiled."""
    from torch._dynamo.utils import counters

    training.model = torch.compile(training.model, backend="aot_eager")
    training.step(21)
    before = {name: dict(each) for name, each in counters.items()}
    training.step(10)
    training.until_counted()
    training.step(10)
    assert {name: dict(each) for name, each in counters.items()} == before
    assert training.counting.flops == WORK


def test_a_step_in_which_code_is_compiled_is_not_counted(training: Training) -> None:
    """The compiler runs each operator on tensors without numbers; a later step is counted."""
    # What another test has compiled would do for this model, too.
    torch._dynamo.reset()
    compiled = torch.compile(training.model, backend="aot_eager")
    training.during = lambda step: setattr(training, "model", compiled) if step == 23 else None
    training.step(23)
    until(lambda: training.counting.is_armed, "another attempt")
    assert training.counting.flops is None
    training.step(60 - training.completed)
    training.until_counted()
    assert training.counting.flops == WORK
    assert training.called[-2:] == [52, 53]


def test_a_step_in_which_the_process_forks_is_not_counted(training: Training) -> None:
    """The child would write into the same trace; a later step is counted."""
    training.during = lambda step: training.counting.spoil() if step == 23 else None
    training.step(23)
    until(lambda: training.counting.is_armed, "another attempt")
    training.step(60 - training.completed)
    training.until_counted()
    assert training.counting.flops == WORK


def hold(lock: Any, has: threading.Event, forked: threading.Event) -> None:
    with lock:
        has.set()
        forked.wait()


def test_a_forked_child_has_nothing_of_it(training: Training, tmp_path: Path) -> None:
    """It may fork, and have an observer of its own, also where the parent's thread had the lock just then."""
    said = tmp_path / "own.json"

    def fork(step: int) -> None:
        trace = training.counting._trace
        if step != 23 or trace is None:
            return
        training.counting.spoil()
        has, forked = threading.Event(), threading.Event()
        other = threading.Thread(target=hold, args=(trace._lock, has, forked))
        other.start()
        has.wait()
        child = os.fork()
        if child:
            forked.set()
            other.join()
        else:
            try:
                training.counting.abandon()
                training.counting.spoil()
                observer = torch.profiler.ExecutionTraceObserver().register_callback(str(said))
                observer.start()
                torch.ones(3)
                observer.unregister_callback()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    training.during = fork
    training.step(23)
    assert said.read_text().count('"name": "aten::ones"') == 1
    until(lambda: training.counting.is_armed, "another attempt")


def test_a_signal_handler_may_fork_at_any_moment(training: Training) -> None:
    """Also while the training thread ends the observer: a fork ends it, too."""

    def end(step: int) -> None:
        trace = training.counting._trace
        if step == 23 and trace is not None:
            assert trace._lock.acquire(timeout=1)
            training.counting.spoil()
            trace._lock.release()

    training.during = end
    training.step(23)
    until(lambda: training.counting.is_armed, "another attempt")


def test_without_a_thread_the_observer_ends_at_once(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would bound its trace: the system may have no more threads."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        training.step(22)
    assert training.faults.count == 1
    assert not training.counting.is_under_way
    assert len(os.listdir("/proc/self/fd")) == before
    training.step(500)
    assert training.counting.flops is None


@pytest.mark.parametrize("step", [12, 23])
def test_what_a_graph_of_the_device_replays_is_not_known(
    training: Training, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Torch calls no operators for it, so that the work would be what is left: nothing is counted after a capture."""
    captures = Captures()
    monkeypatch.setattr(counting, "CAPTURES", captures)

    def capture(number: int) -> None:
        if number == step:
            captures.begin()
            captures.end()

    training.during = capture
    training.step(30)
    until(lambda: not training.counting.is_under_way, "the end of the trace")
    training.step(500)
    assert training.counting.flops is None
    assert training.faults.count == 0


def test_an_observer_of_the_script_goes_on(training: Training, tmp_path: Path) -> None:
    """Torch has one at a time: where the script has begun one, ours does not, and says nothing."""
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "own.json"))
    observer.start()
    training.step(30)
    observer.unregister_callback()
    assert (tmp_path / "own.json").read_text().count('"name": "aten::addmm"') == 30
    assert training.counting.flops is None
    assert not training.counting.is_armed
    assert training.faults.count == 0


def test_an_observer_that_the_script_begins_takes_the_place_of_ours(training: Training, tmp_path: Path) -> None:
    """It has the steps from its beginning on."""
    own: list[Any] = []

    def begin(step: int) -> None:
        if step == 23:
            own.append(torch.profiler.ExecutionTraceObserver().register_callback(str(tmp_path / "own.json")))
            own[0].start()

    training.during = begin
    training.step(30)
    own[0].unregister_callback()
    assert (tmp_path / "own.json").read_text().count('"name": "aten::addmm"') == 8
    assert training.counting.flops is None
    assert training.faults.count == 0


def test_a_profiler_of_the_script_goes_on(training: Training) -> None:
    """A step in which the script profiles is left alone, and a later one counted."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        training.step(30)
    assert training.counting.flops is None
    training.step(30)
    training.until_counted()
    assert training.called[-2:] == [52, 53]


def test_a_trace_that_grows_too_long_ends(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is not known then, and no file is left open."""
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(counting, "_LARGEST", 1000)
    monkeypatch.setattr(counting, "_LOOK_S", 0.01)

    def work(step: int) -> None:
        if step == 23:
            trace = training.counting._trace
            assert trace is not None
            while not trace.ended.is_set():
                torch.ones(3).sum()

    training.during = work
    training.step(23)
    until(lambda: training.counting._trace is None, "the end of the trace")
    training.step(500)
    assert training.counting.flops is None
    assert not training.counting.is_armed
    until(lambda: len(os.listdir("/proc/self/fd")) == before, "the end of its file")


@pytest.mark.parametrize(
    ("name", "kind", "tf32", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", "float", True, 156),
        ("NVIDIA A100-SXM4-80GB", "float", False, 19.5),
        ("Tesla V100-SXM2-32GB", "float", True, 15.7),
        ("NVIDIA H100 PCIe", "c10::BFloat16", False, 756),
        ("NVIDIA A100-SXM4-80GB MIG 1g.5gb", "c10::BFloat16", False, None),
        ("NVIDIA A100-SXM4-80GB", "double", False, None),
    ],
)
def test_the_peak_is_that_of_the_type(
    name: str, kind: str, tf32: bool, tera: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the numbers that most operations have; with TF32 where products of float32 may use it."""
    training = Training("cuda:0")
    training.counting.ask(20)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name if device == "cuda:0" else "")
    monkeypatch.setattr(arithmetic, "read", lambda lines: arithmetic.Arithmetic(10**12, kind, by_convolution=False))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        training.step(30)
        training.until_counted()
    finally:
        torch.set_float32_matmul_precision(before)
    assert training.counting.peak == (None if tera is None else pytest.approx(tera * 1e12))


def test_the_newer_switch_of_tf32_is_read() -> None:
    """Where a script has set it, torch raises for the older one."""
    matmul = torch.backends.cuda.matmul
    before = getattr(matmul, "fp32_precision", None)
    if before is None:
        pytest.skip("this torch has the older switch alone")
    try:
        for precision in ("tf32", "ieee"):
            matmul.fp32_precision = precision
            assert counting._has_tf32(torch, by_convolution=False) == (precision == "tf32")
    finally:
        matmul.fp32_precision = before


@pytest.mark.parametrize("way", ["none", "other trace"])
def test_of_another_torch_the_work_is_not_known(training: Training, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Without such an observer, or with one that writes something else: a dash, and no error."""
    observer = torch._C._profiler
    if way == "none":
        monkeypatch.delattr(observer, "_add_execution_trace_observer")
    else:
        monkeypatch.setattr(arithmetic, "_NODE", re.compile(rb"nothing"))
    training.step(30)
    until(lambda: all(each.name != "ddptop-counting" for each in threading.enumerate()), "the end of the thread")
    assert not training.counting.is_armed
    assert (training.counting.flops, training.faults.count) == (None, 0)


def sparse(training: Training) -> Any:
    """Return a model that multiplies by a matrix in CSR."""
    rows = torch.eye(ROWS).to_sparse_csr()
    linear = training.model
    return lambda batch: rows @ linear(batch)


def nested(training: Training) -> Any:
    """Return a model of nested tensors, which are none of a fixed size."""
    linear = training.model

    def forward(batch: Any) -> Any:
        rows = torch.nested.as_nested_tensor([batch[:3], batch[3:]])
        return torch.nested.to_padded_tensor(linear(rows), 0.0)

    return forward


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [sparse, nested])
def test_tensors_that_the_observer_cannot_read_end_it(training: Training, kind: Callable[[Training], Any]) -> None:
    """It would end the process, which takes from its stack for them what it has not put there."""
    plain, failing, ended = training.model, kind(training), []

    def forward(batch: Any) -> Any:
        for _ in range(20):
            result = failing(batch)
        return result

    training.during = lambda step: setattr(training, "model", forward if step == 23 else plain)
    backward = torch.Tensor.backward

    def looked(*args: Any) -> None:
        training.counting.look()
        ended.append(training.counting._trace is not None and training.counting._trace.ended.is_set())
        backward(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "backward", looked)
        training.step(30)
    assert ended[21:23] == [False, True]
    until(lambda: not training.counting.is_under_way, "the end of the trace")
    training.step(500)
    assert training.counting.flops is None
    assert training.faults.count == 0


def test_a_training_by_another_thread_is_not_counted(training: Training) -> None:
    """What a graph keeps of the main thread has nothing in the observer, which would end the process."""
    kept = [each.view_as(each).grad_fn.next_functions[0][0] for each in training.model.parameters()]
    thread = threading.Thread(target=training.step, args=(500,))
    thread.start()
    thread.join()
    assert training.completed == 500
    assert training.counting.flops is None
    assert training.faults.count == 0
    assert kept


DDP_OF_A_THREAD = """
import threading
import torch, torch.distributed as dist
from torch import nn
from ddptop import agent

dist.init_process_group("gloo", init_method="file://" + __file__ + ".store", rank=0, world_size=1)
made = []
thread = threading.Thread(target=lambda: made.append(nn.parallel.DistributedDataParallel(nn.Linear(8, 4))))
thread.start()
thread.join()
optimizer = torch.optim.SGD(made[0].parameters(), lr=0.1)
for step in range(60):
    made[0](torch.ones(2, 8)).sum().backward()
    optimizer.step()
counting = agent._listener.diagnoses.counting
print(counting.flops, counting.is_under_way)
dist.destroy_process_group()
"""


def test_a_training_whose_ddp_another_thread_has_made_is_not_counted(tmp_path: Path) -> None:
    """DDP keeps nodes of that thread, of which the observer knows nothing: it would end the process."""
    with observed("ddp-of-a-thread", write_script(tmp_path, DDP_OF_A_THREAD), world=1) as (_, ranks):
        assert ranks.wait() == 0, ranks.said
    assert ranks.said.splitlines()[-1] == "None False"
