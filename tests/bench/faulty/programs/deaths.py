"""A rank that dies, or whose numbers do; and what dies around it."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

import torch
from training import Training, fault, main

ROOM = 64 << 20
"""Bytes of address space that a rank has left which is to run out of memory."""


@fault("killed", line=False, says="(?i)SIGKILL")
def kill(training: Training) -> None:
    """It is killed."""
    os.kill(os.getpid(), signal.SIGKILL)


@fault("data_worker", line=False, says="(?i)DataLoader worker.*killed", workers=1)
def data_worker_killed(training: Training) -> None:
    """Its data worker is killed."""
    os.kill(training.batches._workers[0].pid, signal.SIGKILL)  # type: ignore[attr-defined]


def breaks(*_: object) -> None:
    """Raise, in the midst of the forward pass."""
    raise ValueError("the fault that was put in")  # stands here


@fault("exception", marked=breaks, says="ValueError: the fault that was put in")
def raises(training: Training) -> None:
    """Its forward pass raises."""
    training.bare.register_forward_pre_hook(breaks)


@fault("exception", by=None, marked=breaks, says="ValueError: the fault that was put in")
def all_raise(training: Training) -> None:
    """The forward pass of every rank raises."""
    training.bare.register_forward_pre_hook(breaks)


@fault("exit", line=False, says=r"\b3\b")
def exits(training: Training) -> None:
    """It ends with exit code 3."""
    sys.exit(3)


@fault("left_early", says=r"(?i)finished its script by sys\.exit")
def exits_in_order(training: Training) -> None:
    """It ends with exit code 0, while the others wait."""
    sys.exit(0)  # stands here


@fault("native_crash", says="(?i)SIGSEGV|segmentation")
def segfault(training: Training) -> None:
    """Native code reads where nothing is."""
    ctypes.string_at(0)  # stands here


@fault("host_memory", says="(?i)memory")
def memory(training: Training) -> None:
    """It gets no memory any more."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, resource.RLIM_INFINITY))
    torch.ones(4 * ROOM)  # stands here


@fault("nan", line=False)
def nan(training: Training) -> None:
    """Its loss is not a number any more."""
    training.factor = float("nan")


@fault("disk_full", by=(0,), says="(?i)no space|write failed|writing file|disk")
def disk(training: Training) -> None:
    """The disk is full when it saves a checkpoint."""
    folder = Path(training.options.folder)
    try:
        with (folder / "filling").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        torch.save(training.bare.state_dict(), folder / "checkpoint.pt")  # stands here


@fault("launcher", by=(0,), blamed=(), line=False)
def launcher_killed(training: Training) -> None:
    """The process that started the ranks is killed."""
    os.kill(os.getppid(), signal.SIGKILL)


@fault("port_in_use", by=(0,), marked=Training.join, early=True, says="(?i)EADDRINUSE|address already in use")
def port(training: Training) -> None:
    """The port of the ranks' store is in use: by whoever started them."""


if __name__ == "__main__":
    main()
