"""Actions and their outcomes are told to the observer of the run, or written down where there is none."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest
from support.fakes.observers import observed
from support.harness import until

from ddptop.agent import wire
from ddptop.agent.control import journal
from ddptop.agent.record import recording
from ddptop.agent.run.rundir import Process, Run, create

EVENT = wire.Event(5, "pause: held at step 7 · somebody", None, "info", "pause", "somebody")


def run_of(name: str) -> Run:
    """Return the record of a run that was launched."""
    return Run(name, name, "toy.py", (), 2, "gloo", "cpu", time.time_ns(), True, state="running")


@pytest.mark.parametrize(
    ("action", "outcome", "refused", "text"),
    [
        ("pause", "held at step 7 in 8 ms", False, "pause: held at step 7 in 8 ms · ada (dashboard, pts/0)"),
        ("stop", "stopped at step 7", False, "stopped at step 7 · ada (dashboard, pts/0)"),
        ("freeze", "frozen: 2 ranks got SIGSTOP", False, "frozen: 2 ranks got SIGSTOP · ada (dashboard, pts/0)"),
        ("checkpoint", "no function\nfor it", True, "checkpoint refused: no function for it · ada (dashboard, pts/0)"),
        ("stop", "stopped meanwhile", True, "stop refused: stopped meanwhile · ada (dashboard, pts/0)"),
    ],
)
def test_the_outcome_comes_first_and_the_actor_last(action: str, outcome: str, refused: bool, text: str) -> None:
    """Where a list cuts the line, what happened stays."""
    assert journal.sentence(action, outcome, "ada (dashboard, pts/0)", refused=refused) == text


def test_a_long_outcome_leaves_room_for_the_actor() -> None:
    """The wire cuts a text at its end, and the actor is in it all the same."""
    text = journal.sentence("checkpoint", "x" * 1000, "ada (dashboard, pts/0)", refused=True)
    event = wire.read_telemetry(wire.encode(wire.Event(5, text, None, "warning")))
    assert isinstance(event, wire.Event)
    assert event.text == text
    assert text.endswith("x… · ada (dashboard, pts/0)")


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
        assert recording.events_of(observer.directory.database, observer.directory.read()) == []


def test_without_an_observer_the_event_is_written_down() -> None:
    """Nobody is asked; the event is in the record, for whoever opens the run."""
    with observed(run_of("written")) as observer:
        observer.directory.update(observer=Process(2**22 + 1, 0.0))
        journal.note(observer.directory, EVENT)
        observer.turn()
        assert observer.asked == []
        assert recording.events_of(observer.directory.database, observer.directory.read()) == [EVENT]


@pytest.mark.parametrize(
    ("state", "cause", "text"), [("killed", "killed by ada (pts/0)", "run killed by ada (pts/0)"),
                                 ("failed", "rank 1: MemoryError", "run failed: rank 1: MemoryError")],
)  # fmt: skip
def test_the_end_of_a_run_is_among_its_events_by_its_record_where_the_disk_had_no_room(
    state: str, cause: str, text: str
) -> None:
    """It is told once, also where there was room; and as long as the run goes on there is none to tell."""
    directory = create(run_of("full"))
    journal.note(directory, EVENT)
    assert recording.events_of(directory.database, directory.read()) == [EVENT]
    directory.update(state=state, cause=cause, ended_at_ns=7)
    *before, end = recording.events_of(directory.database, directory.read())
    assert (before, end.at_ns, end.text) == ([EVENT], 7, text)
    journal.note(directory, end)
    assert recording.events_of(directory.database, directory.read()) == [EVENT, end]
