"""The kinds of ends of a run: how each is recognized, what it is called, and what can be done about it.

One table; pure, but for the version of an installed package.  Texts are those of torch 2.4 to 2.15, gloo, NCCL,
CPython and Linux.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Final, NamedTuple

from ddptop.agent.run.script.sources import is_library


class Kind(NamedTuple):
    """A kind of end."""

    name: str
    """The word for programs: `device_memory`."""
    title: str
    """The failure in a few words."""
    advice: str
    """The remedy, one line."""
    error: str = ""
    """Pattern of the exception, or of the last output of a process that was ended by a signal."""
    trace: str = ""
    """Pattern of the traceback, where the exception alone is not enough; both have to match."""
    signals: tuple[int, ...] = ()
    """Signals that mean this where no text says otherwise."""


LATE_ABORT: Final = Kind(
    "late_abort",
    "an abort at exit, after the script had finished",
    "Nothing is lost. `dist.destroy_process_group()` at the end of the script avoids it.",
)
LEFT_EARLY: Final = Kind(
    "left_early",
    "a rank left before the others",
    "Give every rank the same number of batches: drop_last=True, a DistributedSampler, or DDP's `join()`.",
)
MISMATCH: Final = Kind(
    "mismatch",
    "ranks called different collectives",
    "Every rank has to make the same calls in the same order and with the same sizes: look for an `if` on the rank, "
    "or for uneven shapes; TORCH_DISTRIBUTED_DEBUG=DETAIL checks each call.",
    r"(?i)received data size doesn't match|op\.preamble\.length <= op\.nbytes|collective mismatch"
    r"|mismatch between collectives|collectives? .{0,40}mismatch",
)
TIMEOUT: Final = Kind(
    "collective_timeout",
    "a collective timed out",
    "One rank did not come: look at what it did then (its stack and log). Where it only takes that long: "
    "`init_process_group(timeout=…)`.",
    r"(?i)watchdog caught collective operation timeout|timed out waiting \d+ ?ms for (?:recv|send)"
    r"|ran for \d+ milliseconds before timing out|terminating the process after attempting to dump"
    r"|nccl operations have failed or timed out|heartbeat monitor|ranks? .{0,60}failed to pass monitoredBarrier",
)
LOST_PEER: Final = Kind(
    "lost_peer",
    "another rank was lost",
    "This rank only noticed it: look for the end of a rank on another machine, and at the network between them.",
    r"(?i)connection (was )?(likely )?(closed|reset|refused)|closed by peer|broken pipe|\brecv|socket closed"
    r"|remote (process|server|error)|ncclRemoteError|aborted due to|heartbeat|caused pair closure",
)
"""The loss of a peer, in the words of gloo, NCCL and TCPStore."""
HOST_GONE: Final = Kind(
    "host_gone",
    "a host was lost",
    "Nothing of it is heard any more, and its ranks have left no word: look whether it is up, whether its scheduler "
    "ended the job there, and at the network between the hosts.",
)
DATA_WORKER: Final = Kind(
    "data_worker",
    "a data worker was killed",
    "Often out of memory, or of /dev/shm: fewer or smaller workers (num_workers, prefetch_factor); `num_workers=0` "
    "shows an error of the dataset itself.",
    r"DataLoader worker \(pid(?:\(s\))? [\d, ]{1,200}\) (?:is killed by signal|exited unexpectedly)",
)
_WORKER_LOST: Final = DATA_WORKER._replace(
    error=r"^(?:ConnectionResetError|ConnectionRefusedError|EOFError|FileNotFoundError|BrokenPipeError)\b",
    # From the beginning alone: a text that holds these words thousands of times takes no longer.
    trace=r"(?s)\A(?=.*?dataloader\.py)(?=.*?_try_get_data).*?(?:resource_sharer|rebuild_storage|multiprocessing)",
)
"""The same where the rank was just fetching a tensor of the worker, and torch does not say that it was killed."""
HOST_MEMORY: Final = Kind(
    "host_memory",
    "out of memory on the host",
    "Smaller batches, fewer data workers (each holds a copy of what it touches), or a higher memory limit.",
    r"MemoryError\b|DefaultCPUAllocator: (?:not enough|can't allocate) memory|std::bad_alloc"
    r"|Cannot allocate memory|\[Errno 12\]",
)
KILLED: Final = Kind(
    "killed",
    "killed from outside",
    "SIGKILL comes from the system's or the scheduler's out-of-memory killer, or from `kill -9`: ask `dmesg`, the "
    "scheduler, and who else uses the machine.",
    signals=(signal.SIGKILL,),
)
HANGUP: Final = Kind(
    "hangup",
    "the terminal was closed",
    "nohup does not protect torchrun, which handles the signal itself: `ddptop launch --detach`, tmux or setsid does.",
)
ON_REQUEST: Final = Kind("on_request", "ended on request", "Somebody asked for it; `ddptop events` says who and when.")
EXIT: Final = Kind(
    "exit",
    "the script left with an exit code",
    "The script decided it: its last output says why.",
    r"^SystemExit\b",
)
EXCEPTION: Final = Kind(
    "exception", "an exception in the script", "The traceback names the line; the other ranks only followed."
)
LAUNCHER: Final = Kind(
    "launcher",
    "torchrun ended before any rank began",
    "No rank was at fault: its last words say why, and `ddptop logs` shows all of them.",
)
RECURSION: Final = Kind(
    "recursion",
    "a recursion without end",
    "The frames that repeat call each other until the stack is full: look for the condition that should end that.",
    r"^RecursionError\b",
)
ABORTED: Final = Kind(
    "aborted",
    "native code gave up",
    "Its last output says why: look for `what():` in the log of the rank.",
    signals=(signal.SIGABRT,),
)
UNKNOWN: Final = Kind(
    "unknown",
    "an end without a word",
    "Its log may say more: `ddptop logs`. Under ddptop launch the exit code is known.",
)

TABLE: Final[tuple[Kind, ...]] = (
    Kind(
        "device_memory",
        "out of memory on the device",
        "A smaller batch, gradient accumulation, activation checkpointing or FSDP; `nvidia-smi` shows who else uses "
        "the device.",
        r"OutOfMemoryError|(?:CUDA|HIP|XPU|NPU|MPS)\b.{0,40}\bout of memory|CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED",
    ),
    Kind(
        "shared_memory",
        "/dev/shm is full, or too small",
        "`df -h /dev/shm`: enlarge it (docker run --shm-size=8g or --ipc=host), use fewer data workers, or "
        "torch.multiprocessing.set_sharing_strategy('file_system').",
        r"(?i)bus error|insufficient shared memory|out of shared memory"
        r"|(?:/torch_|/dev/shm|shared memory object).{0,200}No space left",
        signals=(signal.SIGBUS,),
    ),
    DATA_WORKER,
    _WORKER_LOST,
    HOST_MEMORY,
    Kind(
        "port_in_use",
        "the port is in use",
        "Another process listens there (`ss -ltnp`): end it, choose another --master-port, or let torchrun choose one "
        "(--standalone, or --rdzv-endpoint HOST:0).",
        r"(?i)EADDRINUSE|address already in use",
    ),
    Kind(
        "rendezvous",
        "the ranks did not find each other",
        "Not all came in time: start the same --nnodes, --rdzv-endpoint (or MASTER_ADDR, MASTER_PORT, WORLD_SIZE) on "
        "every host, and see that its port is open.",
        r"(?i)\bRendezvous\w*Error|timed out after \d+ seconds waiting for clients|wait timeout after \d+ ?ms"
        r"|client socket has (?:timed out|failed to connect)|failed to connect to .{0,80}TCPStore"
        r"|connectFullMesh failed"
        r"|timed out .{0,40}(?:rendezvous|initiali[sz]ing process group)",
    ),
    MISMATCH,
    TIMEOUT,
    RECURSION,
    Kind(
        "breakpoint",
        "a breakpoint in the script",
        "A rank has no terminal to debug on. Take the breakpoint out, or start one rank in the foreground: "
        "`torchrun --nproc-per-node 1 SCRIPT`.",
        r"^(?:bdb\.)?BdbQuit\b",
    ),
    Kind(
        "nan",
        "a number that is none (NaN or infinity)",
        "Lower the learning rate, clip gradients, look at the inputs of that step; "
        "torch.autograd.set_detect_anomaly(True) names the operation.",
        r"(?i)\breturned nan values|FloatingPointError|\bnon-?finite\b"
        r"|\b(?:loss|grad\w*|logits|inputs?|outputs?|tensor|values?|weights?)\b.{0,60}\b(?:nan|infs?|infinity|infinite)\b"
        r"|\b(?:nan|infs?)\b.{0,40}\b(?:loss|grad\w*|logits|inputs?|outputs?|tensor|encountered|detected|found)\b",
    ),
    Kind(
        "import_error",
        "a module cannot be imported",
        "Install it for the Python of the ranks, or start the run in the folder that has it.",
        r"^[\w.]*(?:ModuleNotFoundError|Import\w*Error)\b|No module named '",
    ),
    Kind(
        "disk_full",
        "the disk is full",
        "Make room where the script writes (`df -h`, `df -i`); fewer or smaller checkpoints.",
        # The third and fourth are torch.save's, which does not hear the reason from its stream.
        r"(?i)no space left on device|disk quota exceeded|\[Errno (?:28|122)\]"
        r"|PytorchStreamWriter failed writing file|inline_container\.cc.{0,40}unexpected pos \d+ vs \d+",
    ),
    Kind(
        "device_error",
        "an error of the device or of NCCL",
        "CUDA_LAUNCH_BLOCKING=1 makes the traceback exact, NCCL_DEBUG=INFO says more of NCCL; `nvidia-smi -q` and "
        "`dmesg` (Xid) tell of the hardware.",
        r"CUDA error|device-side assert|illegal memory access|nccl(?:UnhandledCuda|System|Internal|Invalid\w*)Error"
        r"|CUDNN_STATUS_\w+|uncorrectable ECC",
    ),
    LOST_PEER,
    Kind("interrupted", "interrupted from the keyboard", "By Ctrl-C, or by `kill -INT`.", r"^KeyboardInterrupt\b"),
    EXIT,
    Kind(
        "native_crash",
        "a crash in native code",
        "The Python line says what called it: update or rebuild that extension (built for this torch?); gdb shows the "
        "rest, of a core dump (`ulimit -c unlimited`).",
        signals=(signal.SIGSEGV, signal.SIGILL, signal.SIGFPE),
    ),
    Kind(
        "terminate",
        "std::terminate without an exception",
        "Often a C++ thread still ran when its object was destroyed: end it before, and call "
        "`dist.destroy_process_group()` at the end. The Python line says what called it; gdb shows the rest.",
        r"terminate called without an active exception",
    ),
    ABORTED,
    KILLED,
    Kind(
        "terminated",
        "ended from outside",
        "A scheduler, a service manager or somebody sent it the signal; `ddptop events` names who used ddptop.",
        signals=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU),
    ),
)
"""In the order in which they are tried."""
ALL: Final = (*TABLE, LATE_ABORT, LEFT_EARLY, HANGUP, ON_REQUEST, HOST_GONE, EXCEPTION, LAUNCHER, UNKNOWN)
FROM_OUTSIDE: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals with which a process is ended by another one, or by the system."""


def advised(
    kind: Kind, step: int | None, out_of_memory: bool | None, ranks: int = 2, hosts: int = 1, cause: str = ""
) -> Kind:
    """Return a kind of end with the advice that fits what is known of it.

    Args:
        kind: the kind.
        step: the last step of the rank that ended; None or 0 before its first.
        out_of_memory: whether the kernel has counted an out-of-memory kill; None where that is not known.
        ranks: number of ranks that have begun.
        hosts: number of their hosts.
        cause: the first cause in words.
    """
    if kind is LEFT_EARLY and "it printed" in cause:
        return kind._replace(advice="The exception that it printed comes first: look why the script went on after it.")
    if kind.name == "import_error" and (advice := _import_advice(cause)):
        return kind._replace(advice=advice)
    if kind is TIMEOUT and re.search(r"\bgroup \w|new_group", cause):
        return kind._replace(advice=kind.advice.replace("init_process_group", "new_group"))
    if kind is EXCEPTION and ranks < 2:
        return kind._replace(advice="The traceback names the line.")
    if kind is LOST_PEER and hosts < 2:
        return kind._replace(
            advice="This rank only noticed it: another rank of this host closed its connections first. Its log may say "
            "why (`ddptop logs`)."
        )
    if kind is EXIT and not step:
        return kind._replace(advice=f"{kind.advice[:-1]}; a wrong option is the usual reason.")
    if kind is KILLED and out_of_memory is False:
        advice = (
            "Not for want of memory, as far as the kernel counts: somebody's `kill -9`, the scheduler, or a killer "
            "such as systemd-oomd or earlyoom, whose log says so. Ask them, and who else uses the machine."
        )
        return kind._replace(advice=advice)
    return kind


def _import_advice(cause: str) -> str:
    """Return the remedy for an import that failed, in the words of Python; empty where the usual one holds."""
    if "(most likely due to a circular import)" in cause:
        return "The modules import each other in a circle: have one of them import inside the function that needs it."
    if found := re.search(r"cannot import name '(\w{1,200})' from '([\w.]{1,200})' \((.{1,1000}?)(?:\)|…|$)", cause):
        name, module, file = found.groups()
        if not is_library(file):
            return f"{file} has no {name}: look what it is called there, or which other file was meant."
        from importlib.metadata import distributions

        top = module.partition(".")[0]
        version = next((each.version for each in distributions(name=top, path=[_packages(file)])), "")
        installed = f"The installed {top} {version}".rstrip()
        return f"{installed} has no {name} ({file}): install the version that the script was written for."
    if found := re.search(r"No module named '([\w.]{1,200})'", cause):
        return f"Install {found[1]} for the Python of the ranks, or start the run in the folder that has it."
    return ""


def _packages(file: str) -> str:
    """Return the folder of the installed packages of which a file is one."""
    return next((str(each) for each in Path(file).parents if each.name in ("site-packages", "dist-packages")), "")


def recognize(
    error: str | None, code: int | None, output: str = "", trace: str = "", out_of_memory: bool | None = None
) -> Kind:
    """Return the kind of an end.

    Args:
        error: type and message of the exception, None where the rank left none.
        code: exit code, negative for a signal; None where it is not known.
        output: the last output of a process that a signal ended; of others it is not looked at.
        trace: the traceback.
        out_of_memory: whether the kernel has counted an out-of-memory kill; None where that is not known.
    """
    number = -code if code is not None and code < 0 else 0
    if out_of_memory and number == signal.SIGKILL:
        return HOST_MEMORY
    # What a process printed before a signal from outside has nothing to do with it.
    text = error if error is not None else "" if number in FROM_OUTSIDE else output
    for kind in TABLE:
        if text and kind.error and re.search(kind.error, text) and re.search(kind.trace, trace):
            return kind
    if error is not None:
        # Else it is the line that the script has printed before it left, as argparse does.
        return EXCEPTION if re.match(r"[\w.<>]+(?::|$)", error) else EXIT
    for kind in TABLE:
        if number in kind.signals:
            return kind
    return EXIT if code else UNKNOWN
