"""Whoever acts on a run asks its observer, sees to it that there is one, and says so where none starts."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from support.fakes.observers import Observer, observed
from support.harness import WAITING, until

from ddptop.agent import wire
from ddptop.agent.client.acting import control as module
from ddptop.agent.client.acting import unobserved
from ddptop.agent.client.acting.control import RunControl
from ddptop.agent.client.acting.kill import Consent
from ddptop.agent.client.sources import takeover
from ddptop.agent.control import caller
from ddptop.agent.end import survey
from ddptop.agent.observer.model.situation import Supervision
from ddptop.agent.run.identity import identify, is_stopped
from ddptop.agent.run.rundir import Process, Run, RunDir
from ddptop.agent.wire.vocabulary.refusals import Refused, Unheard

RUN = Run("asked", "id", "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True, state="running")
GONE = Process(2**22 + 1, 1.0)
NO_NEWS: Any = []


@pytest.fixture
def observer() -> Iterator[Observer]:
    """A fake observer of a run."""
    with observed(RUN) as made:
        yield made


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that the record names as the observer."""
    with subprocess.Popen(WAITING) as process:
        yield process
        process.kill()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nobody for long."""
    monkeypatch.setattr(caller, "READ_S", 0.2)
    monkeypatch.setattr(caller, "_MARGIN_S", 0.1)
    for each in (caller, module):
        monkeypatch.setattr(each, "SILENT_S", 0.5)
    monkeypatch.setattr(caller, "_LOOK_S", 0.05)


class Asking(threading.Thread):
    """Somebody who asks for something in a thread, and what came of it."""

    def __init__(self, observer: Observer, ask: Callable[[RunControl], str]) -> None:
        super().__init__()
        directory = observer.directory
        self._work = lambda: ask(RunControl(directory, directory.read(), "ada"))
        self.outcome: str | Refused | None = None
        self.start()

    def run(self) -> None:
        """Ask."""
        try:
            self.outcome = self._work()
        except Refused as refusal:
            self.outcome = refusal


def asked(observer: Observer, number: int = 1) -> wire.Command:
    """Return the newest of so many commands, once the observer has them."""
    until(lambda: observer.turn() and len(observer.asked) >= number, "the request")
    return wire.read_command(observer.asked[-1][1][0])


def answer(observer: Observer, text: str, *, done: bool = True) -> None:
    """Answer the newest command."""
    observer.cmd.send_multipart([observer.asked[-1][0], wire.encode(wire.Reply(1, done, text))])


def test_each_action_is_a_request_to_the_observer(observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank is looked up for it, and nothing is done here."""
    monkeypatch.setattr(survey, "look", lambda *_: pytest.fail("a rank was looked up"))
    for action in ("pause", "freeze", "resume", "checkpoint"):
        asking = Asking(observer, lambda control: str(getattr(control, action)()))  # noqa: B023 # joined at once
        command = asked(observer)
        assert isinstance(command, wire.Act)
        assert (command.action, command.who) == (action, "ada")
        answer(observer, f"{action} done")
        asking.join()
        assert asking.outcome == f"{action} done"
        observer.asked.clear()


def test_a_kill_is_asked_for_once_the_observer_is_heard(observer: Observer) -> None:
    """Then it cannot be cancelled any more; what becomes an event meanwhile is told, each once."""
    lines: list[str] = []
    consent = Consent()
    old = wire.Event(time.time_ns() - 10**12, "of before", None, "info")
    observer.tell(old)
    asking = Asking(observer, lambda control: control.kill(2.0, 1, lines.append, consent))
    command = asked(observer)
    assert command == msgspec.structs.replace(wire.Kill(1, 2.0, 1, "ada"), **_times(command))
    assert consent.begun
    assert not consent.cancel()
    for text in ("kill requested · ada", "SIGTERM to rank 1"):
        observer.tell(wire.Event(time.time_ns(), text, None, "warning"), Supervision("running"))
    answer(observer, "rank 1: ended")
    asking.join()
    assert asking.outcome == "rank 1: ended"
    assert lines == ["kill requested · ada", "SIGTERM to rank 1"]


def _times(command: wire.Command) -> dict[str, int | None]:
    assert isinstance(command, wire.Kill)
    return {"asked_ns": command.asked_ns, "until_ns": command.until_ns}


def test_what_is_cancelled_before_the_observer_is_heard_is_not_asked_for(observer: Observer) -> None:
    """The silent observer gets nothing that it could do later."""
    consent = Consent()
    asking = Asking(observer, lambda control: control.kill(1.0, None, lambda line: None, consent))
    assert consent.cancel()
    asking.join()
    assert str(asking.outcome) == "cancelled; nothing was killed"
    assert isinstance(asking.outcome, Refused)
    observer.turn()
    assert (observer.asked, consent.begun) == (NO_NEWS, False)


def test_a_stopped_observer_is_continued(observer: Observer, other: subprocess.Popen[bytes]) -> None:
    """By whoever asks, also where it is stopped meanwhile."""
    process = identify(other.pid)
    observer.directory.update(observer=process)
    other.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(process), "it is stopped")
    asking = Asking(observer, lambda control: control.pause())
    asked(observer)
    until(lambda: not is_stopped(process), "it is continued")
    other.send_signal(signal.SIGSTOP)
    until(lambda: observer.turn() and not is_stopped(process), "it is continued again")
    answer(observer, "held")
    asking.join()
    assert asking.outcome == "held"


@pytest.mark.parametrize("action", ["pause", "kill"])
def test_a_silent_observer_is_ended_and_its_successor_asked(
    observer: Observer, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """It has not read the request, which the successor gets."""
    me = observer.directory.read().observer
    observer.directory.update(observer=identify(other.pid))
    started: list[RunDir] = []

    def start(directory: RunDir, run: Run) -> None:
        started.append(directory)
        directory.update(observer=me)

    monkeypatch.setattr(takeover, "_start", start)
    asking = Asking(observer, lambda control: _by(control, action))
    # The sockets stay: only then a request could be read late.
    assert other.wait(60) == -signal.SIGKILL
    until(lambda: started, "a successor is started")
    observer.asked.clear()
    observer.turn()
    until(lambda: observer.turn() and [each for each in observer.asked if _is_in_time(each[1][0])], "the request")
    answer(observer, "done")
    asking.join()
    assert asking.outcome == "done"


def _by(control: RunControl, action: str) -> str:
    return control.pause() if action == "pause" else control.kill(1.0, None, lambda line: None)


def _is_in_time(payload: bytes) -> bool:
    command = wire.read_command(payload)
    return isinstance(command, wire.Act | wire.Kill) and (command.until_ns or 0) > time.clock_gettime_ns(
        time.CLOCK_BOOTTIME
    )


def test_an_observer_that_ends_with_a_request_is_not_asked_twice(
    observer: Observer, other: subprocess.Popen[bytes]
) -> None:
    """Whether it was done is not known; a kill of all alone is asked for again."""
    observer.directory.update(observer=identify(other.pid))
    asking = Asking(observer, lambda control: control.kill(1.0, 1, lambda line: None))
    asked(observer)
    other.kill()
    asking.join()
    assert isinstance(asking.outcome, Unheard)
    assert "its observer ended meanwhile" in str(asking.outcome)


def test_where_no_observer_starts_a_kill_alone_is_done_without(
    observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it says so; all else is refused."""

    def start(directory: RunDir, run: Run) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    lines: list[str] = []
    killed: list[tuple[str, float]] = []

    def kill(directory: RunDir, who: str, grace_s: float, tell: object) -> str:
        killed.append((who, grace_s))
        return "2 ranks ended, 0 left"

    monkeypatch.setattr(takeover, "_start", start)
    monkeypatch.setattr(unobserved, "kill", kill)
    observer.directory.update(observer=GONE)
    control = RunControl(observer.directory, observer.directory.read(), "ada")
    gone = "its observer is gone, and another one cannot start: Resource temporarily unavailable"
    with pytest.raises(Refused, match=gone):
        control.pause()
    with pytest.raises(Refused, match=f"{gone}; `ddptop kill asked` ends all of it"):
        control.kill(1.0, 1, lines.append)
    assert (killed, lines) == ([], [])
    assert control.kill(1.0, None, lines.append) == "2 ranks ended, 0 left"
    assert (killed, lines) == ([("ada", 1.0)], [f"{gone}; going on without one"])


def test_a_run_of_another_container_is_acted_on_in_there(observer: Observer) -> None:
    """Where its observer does not answer, nobody here can end or follow it."""
    me = identify(os.getpid())
    assert me is not None
    unseen = msgspec.structs.replace(me, namespace=f"{me.namespace}0")
    observer.directory.update(observer=unseen, torchrun=unseen)
    control = RunControl(observer.directory, observer.directory.read(), "ada")
    for act in (control.pause, lambda: control.kill(1.0, None, lambda line: None)):
        with pytest.raises(Refused, match=r"lives in another pid namespace .*; run this command in there"):
            act()


def test_a_run_that_is_over_is_not_killed_again(observer: Observer) -> None:
    """Unless something of it is left, which is ended."""
    observer.directory.update(state="finished", observer=GONE, torchrun=None)
    for rank in (0, 1):
        observer.directory.remove_member(rank)
    control = RunControl(observer.directory, observer.directory.read(), "ada")
    with pytest.raises(Refused, match=r"run asked is over already \(finished\)"):
        control.kill(1.0, None, lambda line: None)
    with pytest.raises(Refused, match=r"run asked is over \(finished\)"):
        control.pause()


def test_a_kill_does_not_wait_for_observers_that_end_one_after_the_other(
    observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where each of them fails at its start; then it is done without one."""
    monkeypatch.setattr(unobserved, "kill", lambda *_: "2 ranks ended, 0 left")
    started: list[subprocess.Popen[bytes]] = []

    def start(directory: RunDir, run: Run) -> None:
        started.append(subprocess.Popen(("sleep", "0.1")))
        directory.update(observer=identify(started[-1].pid))
        threading.Thread(target=started[-1].wait).start()

    monkeypatch.setattr(takeover, "_start", start)
    monkeypatch.setattr("ddptop.agent.launcher.detached.is_due", lambda _: False)
    observer.directory.update(observer=GONE)
    lines: list[str] = []
    control = RunControl(observer.directory, observer.directory.read(), "ada")
    assert control.kill(1.0, None, lines.append) == "2 ranks ended, 0 left"
    gone = "its observer ended meanwhile"
    assert lines == [f"{gone}; another one goes on"] * 2 + [f"{gone}, 3 times; going on without one"]
    assert len(started) == 3
