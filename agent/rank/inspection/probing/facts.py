"""The circumstances of a rank's experiments: its cores and who else is on them, its control group, heat, its device.

Each is read as it is offered; what cannot be read is None.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from ddptop.agent.launcher.boards import board_of
from ddptop.agent.rank.faults import is_ours
from ddptop.agent.run import cores
from ddptop.agent.run.cores import Threads
from ddptop.agent.text import spans
from ddptop.agent.wire import Board, Facts

_PROC: Final = Path("/proc")
_GROUPS: Final = Path("/sys/fs/cgroup")
_CPUS: Final = Path("/sys/devices/system/cpu")
_UNLIMITED: Final = 1 << 60
_LARGEST: Final = 1 << 16
_LONGEST_LIST: Final = 100

_T = TypeVar("_T")

_REASONS: Final = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""Bits of NVML's reasons for which a clock is held back; idle clocks and those that a user has set are none."""


class Reading:
    """What is counted, at one moment: the facts are what has been added until another one."""

    def __init__(self, *, closely: bool) -> None:
        """Read; `closely`: all threads of the machine, too."""
        self.at = time.monotonic()
        self.own_s = time.process_time()
        self.cores = _try(lambda: os.sched_getaffinity(0)) or set()
        self.times = _try(lambda: _times(self.cores))
        self.throttled_ms = _try(lambda: _throttled_ms(folder("cpu")))
        self.swap_reads = _try(lambda: _named(_PROC / "vmstat", "pswpin"))
        self.overheated = _try(lambda: _overheated(self.cores))
        self.resent = _try(_resent)
        self.threads: Threads = cores.threads() if closely else {}


def between(before: Reading, after: Reading) -> Facts:
    """Return the circumstances between two readings."""
    took = after.at - before.at
    facts = Facts(took_s=took, cores=len(after.cores) or None, which=", ".join(spans(after.cores))[:_LONGEST_LIST])
    torch = sys.modules.get("torch")
    core = _try(lambda: cores.core_of(threading.get_native_id()))
    steal = others = None
    if before.times is not None and after.times is not None:
        total = after.times[0] - before.times[0]
        busy, stolen = after.times[1] - before.times[1], after.times[2] - before.times[2]
        if total > 0:
            steal = 100 * max(0.0, stolen) / total
            others = 100 * min(1.0, max(0.0, busy - (after.own_s - before.own_s)) / total)
    found = cores.rivals(os.getpid(), after.cores, before.threads, after.threads, took) if after.threads else []
    of_cpu, of_memory = _try(lambda: folder("cpu")), _try(lambda: folder("memory"))
    return msgspec.structs.replace(
        facts,
        threads=None if torch is None else _try(torch.get_num_threads),
        nice=_try(lambda: os.getpriority(os.PRIO_PROCESS, 0)),
        group=str(of_cpu or "")[:_LONGEST_LIST],
        load=_try(lambda: os.getloadavg()[0]),
        steal_percent=steal,
        others_percent=others,
        rivals=cores.remark(found, after.cores),
        quota=_try(lambda: quota(of_cpu)),
        throttled_ms=_more(before.throttled_ms, after.throttled_ms),
        memory_limit=_try(lambda: _bytes(of_memory, "memory.max", "memory.limit_in_bytes")),
        memory_used=_try(lambda: _bytes(of_memory, "memory.current", "memory.usage_in_bytes")),
        swapped=_try(lambda: 1024 * _named(_PROC / "self/status", "VmSwap:")),
        swap_reads=_more(before.swap_reads, after.swap_reads),
        mhz=_try(lambda: _mhz(core)),
        highest_mhz=_try(lambda: int((_CPUS / f"cpu{core}/cpufreq/cpuinfo_max_freq").read_text()) / 1000),
        overheated=_more(before.overheated, after.overheated),
        resent=_more(before.resent, after.resent),
    )


def board(torch: Any, device: Any) -> Board | None:
    """Return a device as NVML knows it; None where it does not."""
    index = device.index or 0
    properties = torch.cuda.get_device_properties(index)
    known = board_of(str(getattr(properties, "uuid", "")), index, os.environ)
    if known.handle is None:
        return None

    def ask(name: str, *arguments: Any) -> Any:
        try:
            return getattr(known.nvml, name)(known.handle, *arguments)
        except (AttributeError, known.nvml.NVMLError):
            return None

    reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    return Board(
        name=str(properties.name)[:_LONGEST_LIST],
        throttled=tuple(text for bit, text in _REASONS.items() if reasons & bit),
        celsius=ask("nvmlDeviceGetTemperature", 0),
        mhz=ask("nvmlDeviceGetClockInfo", 1),
        highest_mhz=ask("nvmlDeviceGetMaxClockInfo", 1),
        # Those that could not be corrected (1), since the driver was started (0).
        errors=ask("nvmlDeviceGetTotalEccErrors", 1, 0),
        lanes=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        most_lanes=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        pcie=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        highest_pcie=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
    )


def _try(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except (OSError, ValueError, IndexError, AttributeError) as error:
        if not is_ours(error):
            raise
        return None


def _more(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(0, after - before)


def _times(wanted: Iterable[int]) -> tuple[float, float, float]:
    """Return the seconds of some cores: all of them, those in which something ran, and those that were stolen."""
    names = {b"cpu%d" % core for core in wanted}
    total = busy = steal = 0
    for line in (_PROC / "stat").read_bytes().splitlines():
        name, *numbers = line.split()
        if name in names:
            # user nice system idle iowait irq softirq steal; guests are in the first two.
            times = [int(number) for number in numbers[:8]]
            total += sum(times)
            busy += sum(times[:3]) + sum(times[5:7])
            steal += times[7]
    ticks = os.sysconf("SC_CLK_TCK")
    return total / ticks, busy / ticks, steal / ticks


def folder(controller: str) -> Path | None:
    """Return the folder of this process's control group with the files of a controller; None where there is none.

    Raises:
        OSError: it cannot be read.
    """
    for line in (_PROC / "self/cgroup").read_text(errors="replace")[:_LARGEST].splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            roots, file = [_GROUPS / controllers, _GROUPS / controller], _FILES[controller][1]
        elif number == "0" and not controllers:
            roots, file = [_GROUPS, _GROUPS / "unified"], _FILES[controller][0]
        else:
            continue
        # In a container the path may be that of the host, and the group the root of what is seen.
        places = (root / inner for root in roots for inner in (path.lstrip("/"), ""))
        found = next((each for each in places if ".." not in each.parts and (each / file).exists()), None)
        if found is not None:
            return found
    return None


_FILES: Final = {"cpu": ("cpu.max", "cpu.cfs_quota_us"), "memory": ("memory.max", "memory.limit_in_bytes")}
"""By controller, a file that version 2 and one that version 1 has where there is a limit."""


def quota(group: Path | None) -> float | None:
    """Return the cores that a control group is worth, None where it sets no limit."""
    if group is None:
        return None
    if (group / "cpu.max").exists():
        most, period = (group / "cpu.max").read_text().split()
    else:
        most, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    return None if most in ("max", "-1") else int(most) / int(period)


def _throttled_ms(group: Path | None) -> int | None:
    if group is None:
        return None
    text = (group / "cpu.stat").read_text()
    if (found := re.search(r"(?m)^throttled_usec (\d{1,18})$", text)) is not None:
        return int(found[1]) // 1_000
    found = re.search(r"(?m)^throttled_time (\d{1,18})$", text)
    return None if found is None else int(found[1]) // 1_000_000


def _bytes(group: Path | None, *names: str) -> int | None:
    """Return the number in the first of some files that there is; None where it is no limit."""
    for name in names:
        if group is not None and (group / name).exists():
            text = (group / name).read_text().strip()
            return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None
    return None


def _named(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        words = line.split()
        if words[0] == name:
            return int(words[1])
    raise ValueError(name)


def _overheated(wanted: Iterable[int]) -> int:
    counts = (_CPUS / f"cpu{core}/thermal_throttle/core_throttle_count" for core in wanted)
    return sum(int(each.read_text()) for each in counts)


def _resent() -> int:
    names, numbers = (line.split() for line in (_PROC / "net/snmp").read_text().splitlines() if line[:4] == "Tcp:")
    return int(numbers[names.index("RetransSegs")])


def _mhz(core: int | None) -> float:
    file = _CPUS / f"cpu{core}/cpufreq/scaling_cur_freq"
    if file.exists():
        return int(file.read_text()) / 1000
    # Of x86 alone.
    found = re.findall(r"(?m)^cpu MHz\s*: ([0-9.]+)$", (_PROC / "cpuinfo").read_text())
    return float(found[core or 0])
