"""Memory and load of a device by NVML, where the driver is made up: what no single machine can show."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ddptop.agent.launcher.boards import _boards, board_of, boards

WHOLE = "GPU-6f3a7e9e-0000-1111-2222-333344445555"
PART = "MIG-0a1b2c3d-0000-1111-2222-333344445555"
SECOND = "GPU-11111111-0000-1111-2222-333344445555"


class Driver(ModuleType):
    """NVML with two devices, the first of which has a part (MIG)."""

    class NVMLError(Exception):
        """The base of its errors."""

    class NVMLError_NotSupported(NVMLError):  # noqa: N801  # NVML's name, like the next
        """What the device never says."""

    class NVMLError_NoPermission(NVMLError):  # noqa: N801
        """What this user is never told."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.asked: list[str] = []
        self.has_driver = True
        self.is_lost = False
        self.loads: dict[str, int] = {WHOLE: 70, SECOND: 30}
        self.memory: dict[str, list[tuple[int, int | None]]] = {
            WHOLE: [(1, 5 << 30), (77, 3 << 30)],
            PART: [(77, 1 << 30)],
        }

    def nvmlInit(self) -> None:  # noqa: N802  # NVML's name, like those below
        if not self.has_driver:
            raise self.NVMLError("driver not loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid not in (WHOLE, PART, SECOND):
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        self.asked.append(handle)
        self._answer()
        if handle not in self.loads:
            raise self.NVMLError_NotSupported("not supported")
        return SimpleNamespace(gpu=self.loads[handle])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        self._answer()
        if handle not in self.memory:
            raise self.NVMLError_NoPermission("no permission")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.memory[handle]]

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._answer()
        return 2

    def _answer(self) -> None:
        if self.is_lost:
            raise self.NVMLError("lost")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return (WHOLE, SECOND)[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return handle

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        if handle == SECOND:
            raise self.NVMLError("lost")
        return SimpleNamespace(used=8 << 30, total=80 << 30)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """NVML, in the place of the real one."""
    made = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    _boards.cache_clear()
    yield made
    _boards.cache_clear()


@pytest.mark.parametrize("visible", [None, "0", "1,0", WHOLE, f"{SECOND},{WHOLE}", "0,-1,1"])
def test_the_device_is_that_which_cuda_means(driver, visible):
    """However `CUDA_VISIBLE_DEVICES` numbers the devices, the UUID that CUDA tells decides."""
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    board = board_of(WHOLE.removeprefix("GPU-"), 0, environment)
    assert board.load == 70
    assert board.memory_of(77) == 3 << 30
    assert board.memory_of(78) is None


@pytest.mark.parametrize("told", [WHOLE.removeprefix("GPU-"), PART.removeprefix("MIG-")])
def test_a_part_of_a_device_has_its_own_memory_and_no_load(driver, told):
    """The part that the process was given is read, whether CUDA tells its UUID or the whole's; its load is unknown."""
    board = board_of(told, 0, {"CUDA_VISIBLE_DEVICES": PART})
    assert board.load is None
    assert board.memory_of(77) == 1 << 30


def test_what_the_driver_refuses_is_not_asked_again(driver):
    """Once a second a call that always fails would only cost."""
    board = board_of(PART.removeprefix("MIG-"), 0, {})
    assert [board.load, board.load, board.load] == [None] * 3
    assert driver.asked == [PART]
    second = board_of(SECOND.removeprefix("GPU-"), 1, {})
    assert (second.memory_of(77), second.load) == (None, 30)


def test_a_reading_that_fails_once_is_tried_again(driver):
    """A driver that is busy or being reset costs an observer or a dashboard one look, and not its numbers for good."""
    board = board_of(WHOLE.removeprefix("GPU-"), 0, {})
    driver.is_lost = True
    assert (board.load, board.memory_of(77), boards()) == (None, None, ())
    driver.is_lost = False
    assert (board.load, board.memory_of(77)) == (70, 3 << 30)
    assert [each.uuid for each in boards()] == [WHOLE, SECOND]


def test_a_memory_that_the_driver_does_not_know_is_unknown(driver):
    """On some systems NVML names the process and no bytes."""
    driver.memory[WHOLE] = [(77, None)]
    assert board_of(WHOLE.removeprefix("GPU-"), 0, {}).memory_of(77) is None


@pytest.mark.parametrize("uuid", ["", "ffffffff-0000-1111-2222-333344445555"])
def test_a_device_that_nvml_does_not_know_has_no_numbers(driver, uuid):
    """A torch that tells no UUID, or a device of another make: unknown, not zero."""
    board = board_of(uuid, 0, {"CUDA_VISIBLE_DEVICES": ""})
    assert (board.load, board.memory_of(77)) == (None, None)


def test_without_a_driver_there_are_no_numbers(driver):
    """The library is there on every machine; a driver is not."""
    driver.has_driver = False
    board = board_of(WHOLE.removeprefix("GPU-"), 0, {})
    assert (board.load, board.memory_of(77)) == (None, None)


def test_all_devices_are_those_of_the_driver(driver):
    """In its order, each with its own numbers, as far as it says them; none without a driver."""
    whole, second = boards()
    assert (whole.uuid, second.uuid) == (WHOLE, SECOND)
    assert (whole.load, whole.memory, whole.memory_of(77)) == (70, (8 << 30, 80 << 30), 3 << 30)
    assert (second.load, second.memory, second.memory_of(77)) == (30, (None, None), None)
    _boards.cache_clear()
    driver.has_driver = False
    assert boards() == ()
