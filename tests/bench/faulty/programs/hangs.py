"""A rank that does not go on: it sleeps, spins, is stopped, holds a lock, or waits for data."""

from __future__ import annotations

import ctypes
import os
import queue
import re
import signal
import threading
import time

from training import FOR_EVER, Training, fault, main


@fault("not_entered", "waiting")
def sleep(training: Training) -> None:
    """It sleeps before a collective that the others enter."""
    time.sleep(FOR_EVER)  # stands here


@fault("spinning")
def spin(training: Training) -> None:
    """It is in a loop without end."""
    while training.number: pass  # noqa: E701  # fmt: skip  # stands here


@fault("lock_held")
def lock(training: Training) -> None:
    """Native code that sleeps holds the interpreter lock for a minute."""
    ctypes.PyDLL(None).sleep(60)  # stands here


@fault("lock_held")
def lock_busy(training: Training) -> None:
    """Native code that computes holds the interpreter lock: a regular expression that backtracks."""
    re.match(r"(a+)+$", 64 * "a" + "b")  # stands here


@fault("stopped")
def stop(training: Training) -> None:
    """It is stopped by a signal."""
    os.kill(os.getpid(), signal.SIGSTOP)  # stands here


@fault("stopped", by=None)
def stop_all(training: Training) -> None:
    """All are stopped by a signal."""
    os.kill(os.getpid(), signal.SIGSTOP)  # stands here


@fault("waiting", "not_entered")
def deadlock(training: Training) -> None:
    """Two threads take two locks, each in another order."""
    first, second, held = threading.Lock(), threading.Lock(), threading.Event()

    def other() -> None:
        with second:
            held.set()
            with first:
                pass

    with first:
        threading.Thread(target=other, daemon=True).start()
        held.wait()
        with second:  # stands here
            pass


@fault("waiting")
def held_by_a_thread(training: Training) -> None:
    """It waits for a lock that a thread of its own holds, which waits for a queue."""
    guard, held, never = threading.RLock(), threading.Event(), queue.Queue[int]()

    def other() -> None:
        with guard:
            held.set()
            never.get()

    threading.Thread(target=other, name="writer", daemon=True).start()
    held.wait()
    guard.acquire()  # stands here


@fault("waiting", "not_entered")
def never_notified(training: Training) -> None:
    """It waits for a condition that nobody notifies."""
    ready = threading.Condition()
    with ready:
        ready.wait()  # stands here


@fault("waiting")
def read_checkpoint(training: Training) -> None:
    """It reads from a pipe into which nobody writes, in a function whose name says something else."""
    reading, _ = os.pipe()
    os.read(reading, 1)  # stands here


@fault("data", marked=Training.draw, workers=1)
def data_worker_hangs(training: Training) -> None:
    """Its data worker brings no batch any more."""
    training.numbers.stuck.set()


@fault("not_entered", "waiting", early=True)
def never_starts(training: Training) -> None:
    """It does not get to the process group that the others wait to make."""
    time.sleep(FOR_EVER)  # stands here


@fault("not_entered", by=(0,), blamed=(1,), marked=Training.join, early=True, missing=1)
def never_comes(_: Training) -> None:
    """The program starts one rank less than it makes the process group for."""


if __name__ == "__main__":
    main()
