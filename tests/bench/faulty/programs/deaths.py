"""A rank that dies, or whose numbers do; and what dies around it."""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
import sys
import traceback
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


@fault("exit", says=r"\b3\b")
def exits(training: Training) -> None:
    """It ends with exit code 3."""
    sys.exit(3)  # stands here


def parse(text: str) -> float:
    """Raise, where the text is no number."""
    return float(text)  # stands here


@fault("exception", marked=parse, says="ValueError: could not convert")
def prints_and_exits(training: Training) -> None:
    """It prints the exception that it caught, and ends with exit code 1."""
    try:
        parse("lr=3")
    except ValueError:
        traceback.print_exc()
        sys.exit(1)


@fault("exception", says="RuntimeError: a loader failed")
def quotes(training: Training) -> None:
    """It raises an exception whose message holds the traceback of another one."""
    try:
        parse("lr=3")
    except ValueError:
        text = traceback.format_exc()
    raise RuntimeError(f"a loader failed.\n\nOriginal traceback:\n{text}")  # stands here


@fault("import_error", says="ImportError: cannot import name")
def lacks_a_name(training: Training) -> None:
    """It imports a name that the installed version of a package does not have."""
    from torch.nn import NoSuchLayer  # type: ignore[attr-defined]  # stands here

    NoSuchLayer()


class OptionalImportError(ImportError):
    """A library's own word for a package that is not installed."""


def optional(name: str) -> None:
    """Import a package that may be missing, as libraries do."""
    try:
        importlib.import_module(name)
    except ImportError as problem:
        raise OptionalImportError(f"needs {name} ({problem})") from problem  # stands here


@fault("import_error", marked=optional, says="OptionalImportError: needs nobody_has_this")
def lacks_a_package(training: Training) -> None:
    """It needs a package that is not installed, as a library says in an exception of its own."""
    optional("nobody_has_this")


@fault("launcher", by=(0,), blamed=(), line=False)
def launcher_hangs_up(training: Training) -> None:
    """The process that started the ranks gets a SIGHUP, as when its terminal is closed."""
    os.kill(os.getppid(), signal.SIGHUP)


@fault("launcher", by=(0,), blamed=(), line=False)
def launcher_terminated(training: Training) -> None:
    """The process that started the ranks gets a SIGTERM."""
    os.kill(os.getppid(), signal.SIGTERM)


@fault("launcher", by=(0,), blamed=(), line=False)
def launcher_interrupted(training: Training) -> None:
    """The process that started the ranks gets a SIGINT."""
    os.kill(os.getppid(), signal.SIGINT)


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
