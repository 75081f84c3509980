"""Actions and their outcomes are told to the observer of the run, or written down where there is none."""

from __future__ import annotations

import threading
import time

import msgspec
from support.fakes.observers import observed
from support.harness import until

from ddptop.agent import wire
from ddptop.agent.control import journal
from ddptop.agent.run.rundir import Process, Run

EVENT = wire.Event(5, "pause by somebody: held at step 7", None, "info", "pause", "somebody")


def run_of(name: str) -> Run:
    """Return the record of a run that was launched."""
    return Run(name, name, "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True, state="running")


def test_the_observer_is_told_once() -> None:
    """It publishes and records the event itself."""
    with observed(run_of("told")) as observer:
        noting = threading.Thread(target=journal.note, args=(observer.directory, EVENT))
        noting.start()
        until(lambda: observer.turn() and observer.asked, "the event")
        ((sender, (payload,)),) = observer.asked
        assert wire.read_command(payload) == msgspec.structs.replace(wire.read_command(payload), event=EVENT)
        observer.cmd.send_multipart([sender, wire.encode(wire.Reply(1, True))])
        noting.join()
        assert journal.events(observer.directory.database) == []


def test_without_an_observer_the_event_is_written_down() -> None:
    """Nobody is asked; the event is in the record, for whoever opens the run."""
    with observed(run_of("written")) as observer:
        observer.directory.update(observer=Process(2**22 + 1, 0.0))
        journal.note(observer.directory, EVENT)
        observer.turn()
        assert observer.asked == []
        assert journal.events(observer.directory.database) == [EVENT]
