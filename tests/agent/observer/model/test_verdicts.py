"""What the dashboard and its lines of text make of verdicts."""

from __future__ import annotations

import time

import msgspec
from support.screens.frames import NOW, frame_at, hung_frame

from ddptop.agent import wire
from ddptop.agent.client.frame import Frame
from ddptop.agent.observer.model.store import Store
from ddptop.agent.run.rundir import Run
from ddptop.tui.cli.output import plain, status
from ddptop.tui.model import documented


def test_the_store_tells_of_each_change_once():
    """A name and its end are one event each, however many frames; faults put in on purpose are one at the start."""
    run = Run("toy-1", "id", "toy.py", (), 2, "gloo", "cpu", 10**9, True, injected="rank 1: 30 ms more in data loading")
    store = Store(run)
    verdict = wire.Verdict(1, "slow_rank", "rank 1 holds the group back by 30 ms a step", 3 * 10**9, None, 1, "data")
    for second, present in ((2, ()), (4, (verdict,)), (5, (verdict,)), (6, ()), (7, ())):
        store.changes.note_verdicts(second * 10**9, present)
        frame = frame_at(store, second)
    texts = [event.text for event in frame.events]
    assert texts[0] == "injected faults: rank 1: 30 ms more in data loading"
    told = [text for text in texts if "holds the group back" in text]
    assert len(told) == 2
    assert told[1] == f"no longer: {told[1].removeprefix('no longer: ')}"
    assert frame.verdict is None
    assert frame.injected == run.injected


def test_the_line_of_a_verdict_is_where_it_was_told_and_says_since_when():
    """What was done before that stays before it in the list, and so does an end that is read from the record."""
    store = Store(Run("toy-1", "id", "toy.py", (), 2, "gloo", "cpu", 10**9, True))
    verdict = wire.Verdict(1, "hang", "rank 1 hangs", 3 * 10**9, None, 1, said_at_ns=9 * 10**9)
    store.apply(wire.Event(5 * 10**9, "checkpoint"), 5)
    store.changes.note_verdicts(10 * 10**9, (verdict,))
    since = time.strftime("%H:%M:%S", time.localtime(3))
    shown = [(event.at, event.text) for event in frame_at(store, 10).events]
    assert shown[-2:] == [(5.0, "checkpoint"), (9.0, f"rank 1 hangs (since {since})")]
    other = Store(Run("toy-1", "id", "toy.py", (), 2, "gloo", "cpu", 10**9, True))
    other.changes.recall_verdict(msgspec.structs.replace(verdict, until_at_ns=8 * 10**9))
    began, ended = other.changes.events
    assert (began.at, ended.at, ended.text) == (9.0, 9.0, "no longer: rank 1 hangs")


def test_lines_of_text_carry_the_verdict():
    """In the line of the interval instead of the slowest rank, and in the summary."""
    text = "rank 1 holds the group back by 31 ms a step (38%): data loading, since step 120"
    verdict = wire.Verdict(1, "slow_rank", text, 3 * 10**9, rank=1)
    frame = Frame(
        run="toy-1",
        state="finished",
        program="toy.py",
        world=2,
        at=0.0,
        step=5,
        slowest=1,
        verdicts=(verdict,),
        injected="rank 1: crash",
    )
    assert verdict.text in plain.line(frame)
    assert "slowest" not in plain.line(frame)
    assert f"verdict: {verdict.text}" in plain.summary(frame)
    assert "injected faults: rank 1: crash" in plain.summary(frame)


def test_the_json_has_the_beginning_in_seconds():
    """A verdict has it in nanoseconds, as all of the wire; the fields of the JSON and their order are an interface."""
    verdict = wire.Verdict(7, "slow_rank", "rank 1 is slow", 1_500_000_000, None, 1, "data", 31.0, 0.5, 12, 0.9, 10, 2)
    verdict = msgspec.structs.replace(verdict, host="node2", line="train.py:88 load", line_ms=20.0, line_share=0.6)
    told = status.as_json(Frame(run="toy-1", state="running", program="toy.py", world=2, at=0.0, verdicts=(verdict,)))
    expected = {
        "kind": "slow_rank", "rank": 1, "phase": "data", "cost_ms": 31.0, "share": 0.5, "since_step": 12,
        "confidence": 0.9, "text": "rank 1 is slow", "since": 1.5, "every": 10,
        "hang": None, "host": "node2", "line": "train.py:88 load", "line_ms": 20.0, "line_share": 0.6, "cause": None,
    }  # fmt: skip
    assert told["verdicts"] == [expected]
    assert list(told["verdict"].items()) == list(expected.items())


def test_the_json_has_what_is_known_of_a_hang():
    """Under the names that the manual gives; what is not known is null."""
    verdict = hung_frame().verdict
    assert verdict is not None
    assert status.as_json(hung_frame())["verdict"]["hang"] == {
        "class": "not_entered", "ranks": [1], "where": "train.py:31 main",
        "waiting": "all_reduce 4 MiB, default group, 3 of 4 ranks, train.py:40",
        "evidence": "record of collectives, stacks", "sure": True, "timeout_at": NOW + 1742,
        "timeout_of": None,
    }  # fmt: skip
    assert documented.interval_json(verdict)["hang"] == status.as_json(hung_frame())["verdict"]["hang"]
    assert documented.interval_json(verdict)["level"] == "error"
    assert documented.hang_json(wire.Hang("gone")) == {
        "class": "gone", "ranks": [], "where": None, "waiting": None, "evidence": None, "sure": True,
        "timeout_at": None, "timeout_of": None,
    }  # fmt: skip
