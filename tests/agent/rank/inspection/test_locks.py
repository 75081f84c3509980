"""The locks for which threads wait: their names in the script, and the threads that hold them."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from ddptop.agent.rank.inspection import locks
from ddptop.agent.rank.inspection.stacks import Stacks
from ddptop.agent.run.script.sources import Sources

GUARD, OWNED, FREE = threading.Lock(), threading.RLock(), threading.Lock()


class Box:
    """Locks as members of an object, one behind a property that must not run."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ready = threading.Condition()

    @property
    def asked(self) -> threading.Lock:
        """The script's own code."""
        raise AssertionError("no code of the script's runs")


BOX = Box()


def with_guard() -> None:
    with GUARD:
        pass


def acquires() -> None:
    OWNED.acquire()
    OWNED.release()


def of_a_member(box: Box = BOX) -> None:
    with FREE, box.lock:
        pass


def of_a_condition() -> None:
    with BOX.ready:
        pass


def hold(held: threading.Event, let_go: threading.Event) -> None:
    with GUARD:
        held_too = (OWNED, BOX.lock)
        with OWNED, BOX.lock, BOX.ready:
            if all(held_too):
                held.set()
                let_go.wait()  # holds


@pytest.fixture
def holder() -> Iterator[threading.Thread]:
    """A thread that holds all locks but one."""
    held, let_go = threading.Event(), threading.Event()
    thread = threading.Thread(target=hold, args=(held, let_go), name="metrics")
    thread.start()
    held.wait()
    yield thread
    let_go.set()
    thread.join()


@pytest.mark.parametrize(
    ("waits", "lock"),
    [(with_guard, "GUARD"), (acquires, "OWNED"), (of_a_member, "box.lock"), (of_a_condition, "BOX.ready")],
)
def test_a_thread_that_waits_for_a_lock_is_told_with_its_holder_and_the_holders_line(
    waits: Callable[[], None], lock: str, holder: threading.Thread
) -> None:
    """By `with` and by `acquire`, of a module, of an object and of a condition."""
    waiter = threading.Thread(target=waits, name="waiter")
    waiter.start()
    deadline, found = time.monotonic() + 10, ""
    with open(__file__, encoding="utf-8") as file:
        line = next(number for number, text in enumerate(file, 1) if text.endswith("# holds\n"))
    while not found and time.monotonic() < deadline:
        threads, _ = Stacks(Sources("", ""), time.time()).take()
        found = next((each.lock for each in threads if each.name == "waiter"), "")
    # A thread of this process begins at once: the fixture lets the locks go, and the waiter with them.
    assert found == f"{lock}, which thread metrics holds (test_locks.py:{line} hold)"
    assert all(not each.lock for each in threads if each.name != "waiter")


def test_to_look_for_locks_keeps_nothing_that_a_function_holds() -> None:
    """Until 3.12 Python copies the variables of a frame whoever asks for them, and the frame keeps the copy."""

    class Batch:
        pass

    gone = threading.Event()
    go_on, let_go, kept = threading.Event(), threading.Event(), []

    def train() -> None:
        batch = Batch()
        kept.append(weakref.ref(batch))
        with GUARD:
            gone.set()
            go_on.wait(30)
            del batch
            gone.set()
            let_go.wait(30)

    training = threading.Thread(target=train)
    training.start()
    gone.wait()
    waiter = threading.Thread(target=with_guard, name="waiter")
    waiter.start()
    deadline, found = time.monotonic() + 10, ""
    while not found and time.monotonic() < deadline:
        threads, _ = Stacks(Sources("", ""), time.time()).take()
        found = next((each.lock for each in threads if each.name == "waiter"), "")
    assert found.startswith("GUARD, which thread")
    gone.clear()
    go_on.set()
    gone.wait()
    left = kept[0]()
    let_go.set()
    training.join()
    waiter.join()
    assert left is None


def _class_of(_: object) -> type:
    raise AssertionError("no code of the script's runs")


SLY = type("Sly", (), {"__class__": property(_class_of)})()
"""It says by code of its own of what class it is."""


class Derived(Box):
    """Has the locks of its instances in a class above."""

    of_class = threading.Lock()


class Lowest(Derived):
    """Sees a lock of a class above it."""


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("with sly:", []),
        ("with box.asked:", []),
        ("with box.lock, box.of_class, Lowest.of_class:", ["box.lock", "box.of_class", "Lowest.of_class"]),
        ("with threading._active_limbo_lock:", ["threading._active_limbo_lock"]),
    ],
)
def test_a_lock_is_found_by_its_name_without_any_code_of_the_scripts(line: str, names: list[str]) -> None:
    """In objects, in classes above theirs, and in modules."""
    assert _names(line, SLY, Lowest()) == names


def _names(line: str, sly: object, box: Box) -> list[str]:
    # A frame of its own: pytest makes each `assert` one of `locals()`, which the reading leaves alone.
    return [name for name, _ in locks._taken(line, sys._getframe())]
