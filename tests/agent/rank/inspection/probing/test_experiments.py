"""Experiments measure what they say, leave nothing behind, and give the script what is the script's."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from support import late

from ddptop.agent.rank.collectives.timing import Collectives
from ddptop.agent.rank.faults import Faults, is_ours
from ddptop.agent.rank.inspection.probing import experiments, facts
from ddptop.agent.rank.inspection.probing.experiments import Unmeasured
from ddptop.agent.rank.inspection.probing.probing import Probing
from ddptop.agent.rank.records.stamps import Stamps
from ddptop.agent.run import cores
from ddptop.agent.wire import Probe

if TYPE_CHECKING:
    import torch

_imports = late.imports(globals())


def probing(folder: Path) -> Probing:
    return Probing(Collectives(Stamps(), Faults()), folder)


def own(**changes: Any) -> Probe:
    return Probe(0, "token", 1, "own", **{"ms": 30, "size": 64, **changes})


def test_the_script_finds_its_modes_and_random_numbers_as_they_were(tmp_path: Path) -> None:
    """In the middle of an autocast region, of one for inference, and of a default type and device."""
    state, numbers = torch.get_rng_state(), random.getstate()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        done = probing(tmp_path).run(own(), "cpu")
        assert torch.is_autocast_enabled("cpu")
        assert torch.is_inference_mode_enabled()
    assert {each.name for each in done.measured} == {"compute", "disk_write", "disk_read"}
    assert done.problem == ""
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == numbers
    assert list(tmp_path.iterdir()) == []


def test_a_product_is_as_fast_as_torch_says_by_itself() -> None:
    """Within a factor of three, as others compute here, too."""
    left = torch.ones(256, 256)
    began, turns = time.perf_counter(), 0
    while time.perf_counter() - began < 0.1:
        left @ left
        turns += 1
    rate = 2 * 256**3 * turns / (time.perf_counter() - began)
    found = experiments.products(torch, torch.device("cpu"), 256, 0.1)
    assert len(found.values) == experiments.BLOCKS
    assert rate / 3 < sorted(found.values)[1] < 3 * rate
    assert len(found.ran) == (experiments.BLOCKS if Path("/proc/thread-self/schedstat").exists() else 0)
    assert all(0 <= part <= 1 for part in found.ran)


def test_modes_of_the_script_see_nothing_of_it(tmp_path: Path) -> None:
    """They may count operators, or change them."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[Any] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(operator)
            return operator(*args, **(kwargs or {}))

    with Functions(), Operators():
        torch.ones(3)
        assert seen
        seen.clear()
        done = probing(tmp_path).run(own(), "cpu")
        assert seen == []
    assert done.problem == ""


class Device:
    """Torch of a device, as far as its memory goes, whose work takes for ever."""

    type = "cuda"

    def __init__(self, allocated: int, reserved: int, peak: int) -> None:
        self.memory_allocated, self.memory_reserved, self.max_memory_allocated = (
            lambda _: allocated << 20,
            lambda _: reserved << 20,
            lambda _: peak << 20,
        )
        self.cuda = self
        self.Event = lambda: self

    def current_stream(self, _: object) -> None: ...

    def record(self, _: object) -> None: ...

    def query(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("allocated", "reserved", "peak", "order"),
    [(100, 600, 500, 4096), (100, 300, 500, 2048), (100, 600, 220, 2048), (100, 600, 101, 0), (500, 500, 500, 0)],
)
def test_a_device_has_room_below_its_peak_alone(allocated: int, reserved: int, peak: int, order: int) -> None:
    """Of memory that its allocator has, of which half is taken: a peak is what the training has had."""
    device: Any = Device(allocated, reserved, peak)
    assert experiments.room(device, device) == order


def test_a_device_without_an_answer_is_not_waited_for_for_ever() -> None:
    device: Any = Device(100, 600, 101)
    with pytest.raises(TimeoutError, match="did not finish within 0 s"):
        experiments._finish(device, device, 0.01)


def test_the_exception_of_a_signal_handler_reaches_the_script(tmp_path: Path) -> None:
    """It is no failure of an experiment."""

    class Interrupted(RuntimeError):
        pass

    def handle(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Interrupted):
            probing(tmp_path).run(own(ms=5_000), "cpu")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("module", "ours"), [("__main__", False), ("torchtitan.train", False), ("torch.cuda", True)])
def test_an_error_is_the_scripts_where_it_passed_through_code_of_its_own(
    module: str, ours: bool, tmp_path: Path
) -> None:
    """And never where the standard library raised it."""
    raised: dict[str, Any] = {"__name__": module}
    exec("def handle(): raise TimeoutError", raised)
    with pytest.raises(TimeoutError) as found:
        raised["handle"]()
    trace = found.value.__traceback__
    assert trace is not None
    # Without the frame of this test.
    error = found.value.with_traceback(trace.tb_next)
    assert is_ours(error) is ours
    assert facts._try((tmp_path / "none").read_text) is None


def test_a_machine_without_room_for_a_thread_fails_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error that the standard library raises is said, as one of the files."""

    class Unmade(threading.Thread):
        def __init__(self, **_: object) -> None:
            pass

    monkeypatch.setattr(threading, "Thread", Unmade)
    assert "thread" in probing(tmp_path).run(own(), "cpu").problem


def test_a_disk_without_room_or_an_answer_is_said_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other experiments are made; a disk that answers late holds the training no longer than it may."""
    monkeypatch.setattr(experiments, "ROOM", 1 << 62)
    done = probing(tmp_path).run(own(), "cpu")
    assert done.problem == f"no room on the disk of {tmp_path}"
    assert {each.name for each in done.measured} == {"compute"}
    monkeypatch.undo()
    asked, answers = threading.Event(), threading.Event()

    def wait(_: int) -> None:
        asked.set()
        answers.wait(60)

    monkeypatch.setattr(os, "fsync", wait)
    monkeypatch.setattr(experiments, "DISK_S", 0.05)
    with pytest.raises(Unmeasured, match=r"took more than 0 s for 4 MiB"):
        experiments.files(tmp_path, "disk")
    assert asked.wait(60)
    # If the rank were killed now, nothing of it would be left.
    assert list(tmp_path.iterdir()) == []
    answers.set()
    for thread in threading.enumerate():
        if thread.name == "ddptop-probe":
            thread.join()
    assert list(tmp_path.iterdir()) == []

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(experiments, "DISK_S", 60.0)
    assert "No space left on device" in probing(tmp_path).run(own(), "cpu").problem
    assert list(tmp_path.iterdir()) == []


def test_the_disk_of_the_checkpoints_is_tried_too_where_it_is_known(tmp_path: Path) -> None:
    subject = probing(tmp_path)
    subject.checkpoints = tmp_path / "checkpoints"
    subject.checkpoints.mkdir()
    names = {each.name for each in subject.run(own(), "cpu").measured}
    assert names >= {"checkpoint_write", "checkpoint_read"}
    assert {each.name for each in subject.run(own(files=False), "cpu").measured} == {"compute"}


def test_facts_are_those_of_the_system(tmp_path: Path) -> None:
    """As psutil and the standard library read them."""
    found = probing(tmp_path).run(own(closely=True), "cpu").facts
    assert found is not None
    process = psutil.Process()
    assert found.cores == len(process.cpu_affinity())
    assert found.nice == process.nice()
    assert found.threads == torch.get_num_threads()
    assert found.load is not None
    assert abs(found.load - os.getloadavg()[0]) < 5
    assert found.swapped is not None
    assert found.others_percent is not None
    assert 0 <= found.others_percent <= 100
    assert found.board is None


@pytest.mark.parametrize(
    ("files", "quota", "throttled_ms"),
    [
        ({"cpu.max": "50000 100000\n", "cpu.stat": "usage_usec 7\nthrottled_usec 123456\n"}, 0.5, 123),
        ({"cpu.max": "max 100000\n", "cpu.stat": "usage_usec 7\n"}, None, None),
        (
            {"cpu.cfs_quota_us": "150000\n", "cpu.cfs_period_us": "100000\n", "cpu.stat": "throttled_time 5000000\n"},
            1.5,
            5,
        ),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n", "cpu.stat": "nr_throttled 0\n"}, None, None),
    ],
)
def test_the_limits_of_a_control_group_are_read_in_both_versions(
    tmp_path: Path, files: dict[str, str], quota: float | None, throttled_ms: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert facts.quota(tmp_path) == quota
    assert facts._throttled_ms(tmp_path) == throttled_ms


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("0::/job", "job/cpu.max"),
        ("0::/host/path/of/a/container", "cpu.max"),
        ("4:cpu,cpuacct:/job", "cpu,cpuacct/job/cpu.cfs_quota_us"),
        # The name of the mount may have them in another order, with a link for each of them.
        ("4:cpuacct,cpu:/job", "cpu/job/cpu.cfs_quota_us"),
        # Of a group outside of a container's own.
        ("0::/../job", "cpu.max"),
    ],
)
def test_the_control_group_is_found_where_it_is_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, place: str
) -> None:
    """Of both versions, and in a container, which sees its own group as the root."""
    file = tmp_path / "groups" / place
    for each in (file, tmp_path / "self" / "cgroup", tmp_path / "job" / "cpu.max"):
        each.parent.mkdir(parents=True)
        each.write_text(line + "\n")
    monkeypatch.setattr(facts, "_PROC", tmp_path)
    monkeypatch.setattr(facts, "_GROUPS", tmp_path / "groups")
    assert facts.folder("cpu") == file.parent


def test_nothing_that_cannot_be_read_is_made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Absence is None, and no error."""
    for name in ("_PROC", "_GROUPS", "_CPUS"):
        monkeypatch.setattr(facts, name, tmp_path)
    reading = facts.Reading(closely=False)
    found = facts.between(reading, facts.Reading(closely=False))
    assert (found.steal_percent, found.quota, found.throttled_ms, found.mhz, found.resent) == (None,) * 5
    assert found.cores is not None


class Machine:
    """What a machine counts, as files of a test; the rank may run on cores 2 and 5, and is on core 2."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proc, self.cpus, self.groups = root / "proc", root / "cpus", root / "groups"
        for name, folder in (("_PROC", self.proc), ("_CPUS", self.cpus), ("_GROUPS", self.groups)):
            monkeypatch.setattr(facts, name, folder)
        self.spent = 0.0
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5})
        monkeypatch.setattr(cores, "core_of", lambda _: 2)
        monkeypatch.setattr(time, "process_time", lambda: self.spent)
        self.write(self.proc / "self/cgroup", "0::/job\n")
        self.write(self.groups / "job/memory.max", f"{(1 << 63) - 4096}\n")
        self.write(self.groups / "job/memory.current", "8192\n")
        self.write(self.groups / "job/cpu.max", "150000 100000\n")
        self.write(self.proc / "self/status", "VmRSS:\t7 kB\nVmSwap:\t12 kB\n")
        self.write(self.proc / "cpuinfo", "".join(f"cpu MHz\t\t: {100 * core}.5\n" for core in range(6)))
        self.write(self.cpus / "cpu2/cpufreq/cpuinfo_max_freq", "3000000\n")

    def write(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def read(self, cpu2: str, cpu5: str, swapped: int, hot: tuple[int, int], resent: int) -> facts.Reading:
        """Return a reading while the machine has counted so much."""
        self.write(self.proc / "stat", f"cpu  9 9 9\ncpu0 7 7 7 7 7 7 7 7\ncpu2 {cpu2}\ncpu5 {cpu5}\n")
        self.write(self.proc / "vmstat", f"pswpout 3\npswpin {swapped}\n")
        for core, count in zip((2, 5), hot, strict=True):
            self.write(self.cpus / f"cpu{core}/thermal_throttle/core_throttle_count", f"{count}\n")
        self.write(self.proc / "net/snmp", f"Ip: A B\nIp: 1 2\nTcp: InSegs RetransSegs\nTcp: 5 {resent}\n")
        return facts.Reading(closely=False)


def test_facts_are_what_the_machine_has_counted_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the cores of the rank alone; what the rank itself took is none of others; a counter that restarts is none."""
    machine = Machine(tmp_path, monkeypatch)
    before = machine.read("0 0 0 0 0 0 0 0 0 0", "5 5 5 5 5 5 5 5 5 5", 7, (3, 1), 10)
    machine.spent = 80 / os.sysconf("SC_CLK_TCK")
    # User, nice, system, idle, iowait, irq, softirq, steal, and guests, which are in the first two.
    after = machine.read("100 0 50 800 0 10 20 20 40 0", "5 5 5 1005 5 5 5 5 5 5", 19, (5, 1), 4)
    found = facts.between(before, after)
    assert (found.cores, found.which) == (2, "2, 5")
    assert found.steal_percent == pytest.approx(1.0)
    assert found.others_percent == pytest.approx(5.0)
    assert (found.swap_reads, found.overheated, found.resent) == (12, 2, 0)
    assert (found.quota, found.memory_limit, found.memory_used) == (1.5, None, 8192)
    assert found.group == str(tmp_path / "groups/job")[:100]
    assert (found.swapped, found.mhz, found.highest_mhz) == (12 << 10, 200.5, 3000.0)


def test_a_device_is_what_the_library_of_its_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """None for what it does not say."""

    class Refused(Exception):
        pass

    def refuse(*_: object) -> int:
        raise Refused

    nvml = SimpleNamespace(
        NVMLError=Refused,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: 0x4 | 0x40 | 0x1,
        nvmlDeviceGetTemperature=lambda _, sensor: 71 + sensor,
        nvmlDeviceGetClockInfo=lambda _, clock: 900 + clock,
        nvmlDeviceGetMaxClockInfo=refuse,
        nvmlDeviceGetTotalEccErrors=lambda _, kind, since: 10 * kind + since,
        nvmlDeviceGetCurrPcieLinkWidth=lambda _: 8,
    )
    monkeypatch.setattr(facts, "board_of", lambda *_: SimpleNamespace(nvml=nvml, handle="handle"))
    properties = SimpleNamespace(name="H100", uuid="GPU-1")
    fake: Any = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda _: properties))
    found = facts.board(fake, SimpleNamespace(index=None))
    assert found is not None
    assert (found.name, found.throttled) == ("H100", ("power cap", "heat (hardware)"))
    assert (found.celsius, found.mhz, found.highest_mhz, found.errors) == (71, 901, None, 10)
    assert (found.lanes, found.most_lanes, found.pcie) == (8, None, None)
    monkeypatch.setattr(facts, "board_of", lambda *_: SimpleNamespace(nvml=nvml, handle=None))
    assert facts.board(fake, SimpleNamespace(index=0)) is None
