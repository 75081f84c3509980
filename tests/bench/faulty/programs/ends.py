"""A rank that ends, or is about to: what the live word says of it must be what the report says in the end."""

from __future__ import annotations

import atexit
import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from training import FOR_EVER, Training, fault, main

MISMATCH = r"(?i)mismatch|called|entered"
RAISED = "ValueError: label 1000 is out of range"


def out_of_range() -> None:
    """Raise, as a dataset does."""
    raise ValueError("label 1000 is out of range")  # stands here


@fault("mismatch", by=(0,), says=MISMATCH)
def save_barrier(training: Training) -> None:
    """Rank 0 alone saves, in a function that has a barrier in it."""
    dist.barrier()  # stands here


@fault("exception", marked=out_of_range, says=RAISED)
def finally_barrier(training: Training) -> None:
    """It raises, and waits in a barrier before the exception leaves the function."""
    try:
        out_of_range()
    finally:
        dist.barrier()


@fault("exception", marked=out_of_range, says=RAISED)
def except_saves(training: Training) -> None:
    """It raises, and what handles that gathers the state of all ranks before it raises again."""
    try:
        out_of_range()
    except ValueError:
        dist.all_gather([torch.empty(3) for _ in range(training.world)], torch.zeros(3))
        raise


@fault("exception", marked=out_of_range, says=RAISED)
def swallowed(training: Training) -> None:
    """It raises, and what handles that sleeps for long before the next attempt."""
    try:
        out_of_range()
    except ValueError:
        time.sleep(FOR_EVER)


@fault("exception", marked=out_of_range, says=RAISED)
def thread_keeps(training: Training) -> None:
    """It raises, and its process waits at exit for a thread."""
    threading.Thread(target=time.sleep, args=(FOR_EVER,), name="uploader").start()
    out_of_range()


@fault("exception", "left_early", marked=out_of_range, says=RAISED)
def exit_barrier(training: Training) -> None:
    """It raises, and its process stands in a barrier in an exit function."""
    atexit.register(dist.barrier)
    out_of_range()


@fault("exception", "left_early", marked=out_of_range, says=RAISED)
def exit_join(training: Training) -> None:
    """It raises, and its process joins a thread in an exit function."""
    late = threading.Thread(target=time.sleep, args=(FOR_EVER,), daemon=True)
    late.start()
    atexit.register(late.join)
    out_of_range()


@fault("left_early", marked=out_of_range, says=f"printed {RAISED}")
def logged(training: Training) -> None:
    """It logs an exception, and leaves the loop in order."""
    try:
        out_of_range()
    except ValueError:
        logging.exception("the batch is left out")
        training.leaves, training.waits_at_the_end = True, False


def uploads() -> None:
    """Be a thread that does not end."""
    time.sleep(FOR_EVER)  # stands here


@fault("at_exit", marked=uploads, says="has finished; its process waits at exit for thread uploader")
def finished_thread(training: Training) -> None:
    """Every rank finishes; the process of rank 1 waits at exit for a thread."""
    threading.Thread(target=uploads, name="uploader").start()


@fault("at_exit", line=False, says="has finished; its process waits at exit for a queue")
def finished_queue(training: Training) -> None:
    """Every rank finishes; the process of rank 1 waits at exit for somebody who reads its queue."""
    training.queue = multiprocessing.Queue()  # type: ignore[attr-defined]
    training.queue.put(bytes(1 << 20))  # type: ignore[attr-defined]


@fault("terminated", line=False, says="SIGTERM")
def terminated(training: Training) -> None:
    """It gets a SIGTERM."""
    os.kill(os.getpid(), signal.SIGTERM)


@fault("terminated", line=False, says="SIGTERM|143")
def terminated_gently(training: Training) -> None:
    """It gets a SIGTERM, and leaves by an exception of its own handler."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.kill(os.getpid(), signal.SIGTERM)


@fault("left_early", line=False, says=r"(?i)left|finished|exited with code 0")
def leaves_at_once(training: Training) -> None:
    """It ends with code 0 in the midst of the training, without a word."""
    os._exit(0)


@fault("aborted", line=False, says="SIGABRT")
def terminate(training: Training) -> None:
    """Native code calls std::terminate without an exception."""
    ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()


def deeper(count: int) -> int:
    """Call itself without end."""
    return deeper(count + 1)  # stands here


@fault("recursion", marked=deeper, says="RecursionError")
def recursion(training: Training) -> None:
    """It calls itself without end."""
    deeper(0)


class Deep:
    """A thing whose attribute is looked up by looking it up."""

    def __getattr__(self, name: str) -> object:
        """Look it up."""
        return getattr(self, name + "")  # stands here


@fault("recursion", marked=Deep.__getattr__, says="SIGSEGV")
def recursion_native(training: Training) -> None:
    """It calls itself without end, through C, until its stack is full."""
    sys.setrecursionlimit(10**9)
    _ = Deep().missing


@fault("breakpoint", says="(?i)BdbQuit")
def breakpoint_left(training: Training) -> None:
    """It comes to a breakpoint that somebody left in the script."""
    breakpoint()  # noqa: T100
    training.step()  # stands here


@fault("timeout", "collective_timeout", "not_entered", "waiting", says="(?i)sleeps|did not come")
def sleeps(training: Training) -> None:
    """It sleeps until the collective of the others times out."""
    time.sleep(FOR_EVER)  # stands here


@fault("spinning", "collective_timeout", says="(?i)computes")
def spins(training: Training) -> None:
    """It computes until the collective of the others times out."""
    while training.number: pass  # noqa: E701  # fmt: skip  # stands here


@fault("stopped", "collective_timeout", line=False, says="(?i)stopped")
def stops(training: Training) -> None:
    """It is stopped by a signal until the collective of the others times out."""
    os.kill(os.getpid(), signal.SIGSTOP)


@fault("mismatch", says=MISMATCH)
def gathers(training: Training) -> None:
    """It gathers where the others reduce, until one of them times out."""
    dist.all_gather([torch.empty(7) for _ in range(training.world)], torch.zeros(7))  # stands here


def evaluate(training: Training) -> None:
    """Call the wrapped module."""
    training.model(torch.randn(8, 16))  # stands here


@fault("mismatch", "not_entered", by=(0,), marked=evaluate, says=r"(?i)mismatch|called|entered|did not")
def evaluates(training: Training) -> None:
    """Rank 0 alone evaluates the wrapped module, whose buffers are broadcast, while the others wait in a barrier."""
    evaluate(training)


@fault("collective_timeout", "waiting", "not_entered", says="(?i)monitoredBarrier|sleeps|did not")
def monitored(training: Training) -> None:
    """It sleeps while the others wait in a monitored barrier."""
    time.sleep(FOR_EVER)  # stands here


@fault("exception", marked=out_of_range, says=RAISED)
def thread_raises(training: Training) -> None:
    """It trains in another thread than the main one, where it raises and then waits in a barrier."""

    def train() -> None:
        try:
            out_of_range()
        finally:
            dist.barrier()

    worker = threading.Thread(target=train)
    worker.start()
    worker.join()


class Guarded(Training):
    """With a place for what only some of these have."""

    def build(self) -> None:
        """Give the model buffers where the wrapped module is evaluated."""
        super().build()
        if self.options.fault == "evaluates":
            model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4))
            self.model = torch.nn.parallel.DistributedDataParallel(model)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def break_down(self) -> None:
        """Let those wait that have to, for the rank whose fault it is."""
        super().break_down()
        by = self.fault.by or ()
        if self.options.fault == "evaluates" and self.rank not in by:
            dist.barrier()
        if self.options.fault == "monitored" and self.rank not in by:
            dist.monitored_barrier(timeout=timedelta(seconds=self.options.timeout))


if __name__ == "__main__":
    main(Guarded)
