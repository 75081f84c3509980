"""What a rank does by itself in a probe: a matrix product, and files.

Nothing of the training's state is touched: no random numbers, no gradients, no autocast (calls with `out` are not
converted), no memory beyond the device's present peak, so that the allocator's peak counters stay.  The work is on the
training thread with the threads that torch has, because another thread could have other cores.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from ddptop.agent.rank.faults import describe
from ddptop.agent.wire import Measured

ORDER_OF_CPU: Final = 512
"""Order of the matrices of a processor: a product takes some milliseconds."""
ORDERS: Final = (4096, 2048, 1024, 512)
"""Those of a device; the largest for which there is room."""
BLOCKS: Final = 3
"""Measurements of each experiment, of which the median counts."""
WRITTEN: Final = 4 << 20
"""Bytes of the file."""
ROOM: Final = 64 << 20
"""Bytes that have to be free on its disk."""
DISK_S: Final = 2.0
"""Seconds that a disk may take: the training waits for it no longer."""
MARK: Final = ".ddptop-probe-"
"""The beginning of the name of the file, on a disk whose files need one for a moment."""


class Unmeasured(Exception):
    """Something cannot be measured; the text is the reason."""


def room(torch: Any, device: Any) -> int:
    """Return the order of the largest matrices of which three have room without a new peak of memory."""
    if device.type == "cpu":
        return ORDER_OF_CPU
    free = spare(torch, device)
    return next((order for order in ORDERS if 3 * 4 * order * order <= free), 0)


def spare(torch: Any, device: Any) -> int:
    """Return the bytes that the allocator of a device can hand out without asking for more, or for a new peak."""
    if device.type != "cuda":
        return 0
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    # Half of it: what is free is in pieces.
    return int(min(torch.cuda.max_memory_allocated(device), reserved) - allocated) // 2


def products(torch: Any, device: Any, order: int, seconds: float, name: str = "compute") -> Measured:
    """Multiply matrices; returns operations of floating point a second."""
    left, right, out = (torch.full((order, order), 0.5, dtype=torch.float32, device=device) for _ in range(3))
    return _measured(name, partial(torch.mm, left, right, out=out), 2.0 * order**3, seconds, torch, device)


def _measured(
    name: str, work: Callable[[], object], amount: float, seconds: float, torch: Any, device: Any
) -> Measured:
    """Return the rate of some work in blocks of a third of the time.

    Whole blocks and not single turns: of two processes on one core each runs for milliseconds and then stands.
    """
    for _ in range(2):
        work()
    _finish(torch, device)
    rates, ran = [], []
    for _ in range(BLOCKS):
        began, waited = time.perf_counter(), _waited_s()
        turns = 0
        while (took := time.perf_counter() - began) < seconds / BLOCKS or not turns:
            work()
            turns += 1
            # Some turns at a time: the queue of a device takes more than it does meanwhile.
            if device.type != "cpu" and not turns % 4:
                _finish(torch, device)
        _finish(torch, device)
        took = time.perf_counter() - began
        rates.append(turns * amount / took)
        if waited is not None and (waits := _waited_s()) is not None:
            ran.append(max(0.0, 1 - (waits - waited) / took))
    return Measured(name, tuple(rates), tuple(ran) if len(ran) == BLOCKS else ())


def _waited_s() -> float | None:
    """Return the seconds for which this thread has waited for a core since its beginning; None where none says it."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _finish(torch: Any, device: Any, seconds: float = 5.0) -> None:
    """Wait until a device has done what it was given.

    Raises:
        TimeoutError: it takes longer.
    """
    if device.type != "cuda":
        return
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    give_up = time.monotonic() + seconds
    while not event.query():
        if time.monotonic() > give_up:
            raise TimeoutError(f"the device did not finish within {seconds:.0f} s")
        time.sleep(20e-6)


def files(folder: Path, name: str) -> list[Measured]:
    """Write a file to the disk and read it; returns bytes a second. Nothing of it stays.

    Another thread does it: a disk that does not answer holds the training for two seconds, and no longer.

    Raises:
        Unmeasured: there is no room, the disk does not answer, or the file cannot be written or read.
    """
    status = os.statvfs(folder)
    if status.f_bavail * status.f_frsize < ROOM:
        raise Unmeasured(f"no room on the disk of {folder}")
    found: list[Measured] = []
    problems: list[Exception] = []

    def work() -> None:
        try:
            found.extend(_written_and_read(folder, name))
        except Exception as problem:  # handed to the thread that waits; no handler of the script runs in this one
            problems.append(problem)

    thread = threading.Thread(target=work, name="ddptop-probe", daemon=True)
    thread.start()
    thread.join(DISK_S)
    if thread.is_alive():
        raise Unmeasured(f"the disk of {folder} took more than {DISK_S:.0f} s for {WRITTEN >> 20} MiB")
    if problems:
        raise Unmeasured(f"{folder}: {describe(problems[0])}") from problems[0]
    return found


def _written_and_read(folder: Path, name: str) -> list[Measured]:
    content = os.urandom(1 << 20)
    # It has no name, so that nothing of it is left, however this process ends.
    with tempfile.TemporaryFile(dir=folder, prefix=MARK) as file:
        began = time.perf_counter()
        for _ in range(WRITTEN // len(content)):
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
        written = WRITTEN / (time.perf_counter() - began)
        with contextlib.suppress(OSError):
            # What the page cache holds shows nothing of a disk.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        began = time.perf_counter()
        while file.read(len(content)):
            pass
        read = WRITTEN / (time.perf_counter() - began)
    return [Measured(f"{name}_write", (written,)), Measured(f"{name}_read", (read,))]
