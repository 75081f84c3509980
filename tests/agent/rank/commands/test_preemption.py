"""What a TERM leads to where it was the agent's to handle, and is not any more."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ddptop.agent.rank.commands import preemption
from ddptop.agent.rank.faults import Faults


class Session:
    """The agent of this process, or of another one."""

    def __init__(self, owner: int) -> None:
        self.owner, self.faults = owner, Faults()


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    """Take down which signals are sent, instead of sending them; put the handler back."""
    sent: list[tuple[int, int]] = []
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(os, "kill", lambda *told: sent.append(told))
    yield sent
    signal.signal(signal.SIGTERM, before)


def handler(before: Any, owner: int | None = None) -> preemption._Preemption:
    found = preemption._Preemption(Session(os.getpid() if owner is None else owner), None)  # type: ignore[arg-type]
    found.before = before
    signal.signal(signal.SIGTERM, found.begin)
    return found


def test_after_it_has_failed_the_handler_of_before_is_called(killed: list[Any]) -> None:
    """The script's own, as if ours had never been; nothing is sent, and ours stays for the next one."""
    seen: list[int] = []
    found = handler(lambda number, _: seen.append(number))
    found._failed = True
    found.begin(signal.SIGTERM, None)
    found.begin(signal.SIGTERM, None)
    assert (seen, killed) == ([signal.SIGTERM] * 2, [])


def test_a_script_that_calls_ours_from_its_own_dies_all_the_same(killed: list[Any]) -> None:
    """A handler set later that hands on to ours would be called again by the signal: the default is set first."""
    found = handler(signal.SIG_DFL)
    found._failed = True
    signal.signal(signal.SIGTERM, lambda number, frame: found.begin(number, frame))
    found.begin(signal.SIGTERM, None)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert killed == [(os.getpid(), signal.SIGTERM)]


def test_what_was_ignored_is_ignored(killed: list[Any]) -> None:
    """As it was before ours."""
    found = handler(signal.SIG_IGN)
    found._failed = True
    found.begin(signal.SIGTERM, None)
    assert killed == []


def test_in_a_forked_child_a_term_is_what_it_was(killed: list[Any]) -> None:
    """Also where the child calls ours by a handler of its own; what it has set itself stays."""
    found = handler(signal.SIG_DFL, owner=os.getpid() + 1)
    found.begin(signal.SIGTERM, None)
    assert (killed, found._begun) == ([(os.getpid(), signal.SIGTERM)], False)
    own = lambda *_: None  # noqa: E731
    signal.signal(signal.SIGTERM, own)
    found.forget()
    assert signal.getsignal(signal.SIGTERM) is own
    signal.signal(signal.SIGTERM, found.begin)
    found.forget()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_without_room_for_a_thread_it_ends_as_ever(killed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is raised into whatever line the script is at; the signal comes again, and is not ours then."""

    def full(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "Thread", full)
    found = handler(signal.SIG_DFL)
    found.begin(signal.SIGTERM, None)
    assert (killed, found._session.faults.count) == ([(os.getpid(), signal.SIGTERM)], 1)
    found.begin(signal.SIGTERM, None)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
