"""The threads of this process, read as the agent does from a thread of its own; the script may do what it likes."""

from __future__ import annotations

import os
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from support.harness import DEADLINE_S, until

from ddptop.agent import wire
from ddptop.agent.rank.inspection import stacks
from ddptop.agent.rank.inspection.stacks import Stacks
from ddptop.agent.run.script.sources import Sources

HERE = Path(__file__)


def taken(by: Stacks | None = None, training: int | None = None) -> tuple[tuple[wire.Thread, ...], int]:
    """Return what a thread of its own takes of the stacks of all others."""
    found: list[tuple[tuple[wire.Thread, ...], int]] = []
    reader = by or Stacks(Sources(str(HERE.parent), ""), time.time())
    thread = threading.Thread(target=lambda: found.append(reader.take(training)), name="ddptop-agent", daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert found, "the stacks were not taken"
    return found[0]


def message_of(threads: tuple[wire.Thread, ...]) -> bytes:
    """Return the reply that tells these."""
    return wire.encode(wire.Reply(1, True, inspection=wire.Inspection(0, 1, "agent", 1, threads=threads)))


def running(work: Callable[[], object], name: str = "worker") -> None:
    """Start a thread that lives as long as the process."""
    threading.Thread(target=work, name=name, daemon=True).start()


def run_as(file: str, name: str) -> Callable[[], None]:
    """Start a thread that stands in a function of such a file; return what ends it."""
    event = threading.Event()

    def waiting() -> None:
        event.wait()

    waiting.__code__ = waiting.__code__.replace(co_filename=file)
    running(waiting, name)
    until(lambda: any(thread.name == name and thread.frames for thread in taken()[0]), f"{name} to stand")
    return event.set


def test_a_training_in_another_thread_comes_first() -> None:
    """The thread that makes the steps is the one that is judged; the main one again once that has ended."""
    event = threading.Event()
    trainer = threading.Thread(target=event.wait, name="trainer", daemon=True)
    trainer.start()
    threads, _ = taken(training=trainer.ident)
    assert [(thread.name, thread.main) for thread in threads][:1] == [("trainer", True)]
    (main,) = (thread for thread in threads if thread.native_id == os.getpid())
    assert (main.name, main.main) == ("MainThread", False)
    event.set()
    trainer.join(DEADLINE_S)
    threads, _ = taken(training=trainer.ident)
    assert [(thread.name, thread.main) for thread in threads][:1] == [("MainThread", True)]


def test_the_main_thread_comes_first_with_the_users_line() -> None:
    """Its name, the system's number of it, and this very line; the agent's own thread is not there."""
    threads, left_out = taken()
    main = threads[0]
    mine = next(
        frame for frame in main.frames if frame.function == "test_the_main_thread_comes_first_with_the_users_line"
    )
    assert (main.name, main.main, main.native_id, left_out) == ("MainThread", True, os.getpid(), 0)
    assert (mine.file, mine.library, mine.source) == (HERE.name, False, "threads, left_out = taken()")
    assert not any(thread.name.startswith("ddptop-") for thread in threads)
    assert all(not frame.source for frame in main.frames if frame.library)


@pytest.mark.parametrize("kind", ["fifo", "missing", "hostile"])
def test_a_file_of_any_name_holds_nobody_up(tmp_path: Path, kind: str) -> None:
    """The stack is told, without its source."""
    file = tmp_path / "module.py"
    if kind == "fifo":
        os.mkfifo(file)
    name = "a\0b\x1b[31m\udcff" + "x" * 100_000 if kind == "hostile" else str(file)
    end = run_as(name, f"in {kind}")
    try:
        threads, _ = taken()
    finally:
        end()
    (thread,) = [thread for thread in threads if thread.name == f"in {kind}"]
    (frame,) = [frame for frame in thread.frames if frame.function.endswith("waiting")]
    assert (frame.line > 0, frame.source) == (True, "")
    assert message_of(threads)


def test_a_module_of_the_scripts_own_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """`linecache` and `traceback` of the script's are neither imported nor called."""

    class Trap(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{self.__name__}.{name} was used")

    for name in ("linecache", "traceback", "inspect"):
        monkeypatch.setitem(sys.modules, name, Trap(name))
    threads, _ = taken()
    assert threads[0].frames[0].line


def test_a_file_system_that_hangs_costs_the_source_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent goes on without it, and does not wait for it again."""
    stuck, asked = threading.Event(), []

    def read(*_: object, **__: object) -> dict[int, str]:
        asked.append(1)
        stuck.wait()
        return {}

    monkeypatch.setattr(stacks, "read_lines", read)
    reader = Stacks(Sources(str(HERE.parent), ""), time.time())
    try:
        for _ in range(2):
            threads, _ = taken(reader)
            assert threads[0].frames
            assert not any(frame.source for frame in threads[0].frames)
        assert len(asked) == 1
    finally:
        stuck.set()


def test_of_a_deep_stack_both_ends_are_told() -> None:
    """What is called in the end, and where it began."""
    end, deep = threading.Event(), threading.Event()

    def descend(left: int) -> None:
        if left:
            descend(left - 1)
        else:
            deep.set()
            end.wait()

    def work() -> None:
        # On Python 3.10 the limit is one of the process.
        descend(600)

    running(work, "deep")
    try:
        assert deep.wait(DEADLINE_S)
        threads, _ = taken()
    finally:
        end.set()
    (thread,) = [thread for thread in threads if thread.name == "deep"]
    assert len(thread.frames) == wire.MOST_FRAMES
    assert thread.frames[0].function.endswith("wait")
    assert thread.left_out > 500
    assert any(frame.function.endswith("work") for frame in thread.frames[-8:])


def test_a_thousand_threads_that_come_and_go() -> None:
    """As many as a message has, the main one first, and the number of the others."""
    end = threading.Event()
    stop = threading.Event()

    def flicker() -> None:
        while not stop.is_set():
            short = threading.Thread(target=int)
            short.start()
            short.join()

    flickering = threading.Thread(target=flicker, daemon=True)
    flickering.start()
    many = [threading.Thread(target=end.wait, daemon=True) for _ in range(1000)]
    try:
        for each in many:
            each.start()
        for _ in range(20):
            threads, left_out = taken()
            assert (len(threads), threads[0].main) == (wire.MOST_THREADS, True)
            assert left_out >= 1000 - wire.MOST_THREADS
        assert len(message_of(threads)) < 256 << 10
    finally:
        stop.set()
        end.set()
        for each in (*many, flickering):
            each.join()


def test_a_thread_whose_name_raises_is_told_all_the_same() -> None:
    """A script's own class of threads may do anything."""
    end = threading.Event()

    class Odd(threading.Thread):
        @property
        def name(self) -> str:
            raise RuntimeError("no name")

        @name.setter
        def name(self, _: str) -> None: ...

    odd = Odd(target=end.wait, daemon=True)
    odd.start()
    try:
        threads, _ = taken()
    finally:
        end.set()
    assert any(thread.native_id == odd.native_id and thread.name.startswith("thread 0x") for thread in threads)
