"""Messages and records that are valid by their types and absurd in their values: the frame still stands."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.screens.dashboards import seen, until
from support.screens.frames import StillSource, frame_at
from support.values.histories import RecordedHistory
from support.values.wiretypes import of_type

from ddptop.agent import wire
from ddptop.agent.client.frame import Frame
from ddptop.agent.observer.model.situation import Liveness, Supervision
from ddptop.agent.observer.model.store import Store
from ddptop.agent.run.identity import Row
from ddptop.agent.run.rundir import Member, Process, Run
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.cli.output import card, plain, status

RUN = Run("toy-1", "id", "toy.py", (), 2, "gloo", "cpu", 10**9, True)
RANKS = st.one_of(st.integers(0, 1), st.sampled_from([-1, 2, 2**63]))
GENERATIONS = st.one_of(st.integers(0, 2), st.sampled_from([-1, 2**63 - 1]))
STATES = st.sampled_from(["starting", "running", "paused", "ended", "hibernating", "finished", "", "\x1b[2J"])
MESSAGES = st.one_of(
    of_type(wire.Hello, rank=RANKS, run_id=st.sampled_from(["id", "other"]), generation=GENERATIONS),
    of_type(wire.Beat, rank=RANKS, state=STATES, generation=st.none() | GENERATIONS),
    of_type(wire.Steps, rank=RANKS, generation=GENERATIONS),
    of_type(wire.Summary, rank=RANKS, generation=GENERATIONS),
    of_type(wire.Event),
)
PROCESS = Process(7, 1.0)
LIVENESS = st.builds(
    Liveness, st.sampled_from(["running", "failed", "resting"]), st.booleans(), st.booleans(),
    st.frozensets(st.integers(0, 1)), seen=st.dictionaries(
        st.integers(0, 1), st.builds(
            Row, st.just(PROCESS), st.just(1), st.just(1), st.text(max_size=8), st.just(0), st.floats(0),
        ),
    ), at=st.none() | st.floats(0, 1e10),
)  # fmt: skip
ABSURD = settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate]
)
"""Not shrunk: a failure tells the messages, few as they are."""


def told(frame: Frame) -> str:
    """Return all that is said of a frame without a screen."""
    texts = [
        json.dumps(status.as_json(frame), allow_nan=False),
        json.dumps(status.run_json(frame), allow_nan=False),
        *card.card(frame),
        *status.table([frame], time.time()),
        plain.line(frame),
        *plain.summary(frame),
        *(event.text for event in frame.events),
    ]
    return "\n".join(texts)


@pytest.mark.parametrize("brief", [False, True], ids=["all records", "summaries"])
@ABSURD
@given(
    messages=st.lists(MESSAGES, min_size=1, max_size=12),
    members=st.lists(of_type(Member, rank=RANKS, generation=GENERATIONS), max_size=2),
    liveness=LIVENESS,
    run=of_type(Run, world=st.just(2), run=st.just("toy-1"), run_id=st.just("id")),
)  # fmt: skip
def test_absurd_values_break_no_frame(
    brief: bool, messages: list[wire.Telemetry], members: list[Member], liveness: Liveness, run: Run
) -> None:
    """Whatever valid messages and records hold, heard or recorded, JSON, lines and frame are made."""
    store = Store(RUN, brief=brief)
    store.know_members({member.rank: member for member in members})
    for number, message in enumerate(messages):
        # As it comes over the wire: what the decoder lets through is all that can come.
        try:
            message = wire.read_telemetry(wire.encode(message))
        except wire.Unreadable:
            continue
        if number % 3 == 2:
            store.recall(message, 3.0)
        else:
            store.apply(message, 2.0)
        replace(frame_at(store, 2.5), history=RecordedHistory(2))
    store.know_liveness(liveness)
    store.watch(frozenset({0}))
    store.know_run(run)
    for now in (0.0, 3.0, 1e9):
        assert told(frame_at(store, now))
        assert len(tuple(frame_at(store, now).ranks)) == 2


def absurd_frame(value: float, state: str) -> Frame:
    """Return a run of two ranks in which every number is `value` as far as its type allows, and every state foreign."""
    store = Store(RUN)
    number = int(value) if abs(value) < 2**63 else 2**63 - 1
    for rank in (0, 1):
        step = wire.Step(
            1, number, number, number, number, number, number, number, number, number, value, number,
            (wire.Collective("all_reduce", number, number, number, 1, estimated=True),), {"x": value}, (number,) * 5,
        )  # fmt: skip
        store.apply(
            wire.Beat(
                rank, 10**9, state, "forward", number, number, 1, number, number, value, value, "cpu",
                total_steps=number, outstanding=number, timeout_s=value, held_at_ns=number, timed_every=number,
            ), 2.0,
        )  # fmt: skip
        store.apply(wire.Steps(rank, (step,)), 2.0)
        samples = wire.Summary(rank, 1, number, number, 2, 1, 10**6, 0, 0, 0, 0, 0, 0, value, value)
        store.apply(samples, 2.0)
    store.apply(wire.Event(number, "something new", 0, "catastrophe"), 2.0)
    store.supervise(Supervision(state), 2.0)
    return replace(frame_at(store, 2.5), history=RecordedHistory(2))


@pytest.mark.parametrize("value", [float(2**62), 1e308, -1.0], ids=str)
async def test_an_unknown_state_and_absurd_numbers_end_no_screen(value: float) -> None:
    """A dashboard shows a newer agent's state and any number in every view, and goes on."""
    source = StillSource(absurd_frame(value, "hibernating"))
    app = DdptopApp(source, clock=lambda: 3.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "hibernating" in seen(app), "the state")
        for keys in (("1",), ("2",), ("3",), ("4",), ("5",), ("enter",), ("escape", "g"), ("escape", "r")):
            await pilot.press(*keys)
            await pilot.pause()
            assert app.failure is None, keys


def test_infinite_samples_of_a_summary() -> None:
    """A rate that is no number is left out, in the one line that a frame without records is made of."""
    store = Store(RUN, brief=True)
    for rank in (0, 1):
        store.apply(wire.Beat(rank, 1, "running", "forward", 1, 1, 1), 2.0)
        store.apply(wire.Summary(rank, 1, 1, 1, 1, 1, 10**6, 0, 0, 0, 0, 0, 0, None, float("inf")), 2.0)
    assert status.as_json(frame_at(store, 2.0))["samples_per_s"] is None


def _without(message: Any, *names: str) -> Any:
    return {name: value for name, value in msgspec.to_builtins(message).items() if name not in names}


def test_records_and_messages_of_another_version() -> None:
    """What an older agent leaves out is not known, what a newer one adds is passed over, and both are shown."""
    beat = msgspec.to_builtins(wire.Beat(0, 10**9, "running", "forward", 7, 10**9, 1, generation=0))
    older, newer = beat[:8], [*beat, "a field of tomorrow", {"more": 1}]
    member = Member(1, 1, 2, PROCESS, "host", 0, "", "", None)
    record = {**msgspec.to_builtins(member), "mood": "fine", "ended": {"at_ns": 5, "exit_code": 0, "new": [1]}}
    run = {**_without(RUN, "killed_by", "max_restarts"), "tomorrow": {}}
    for fields in (older, newer):
        store = Store(msgspec.json.decode(msgspec.json.encode(run), type=Run))
        store.apply(wire.read_telemetry(msgspec.msgpack.encode(fields)), 1.5)
        store.know_members({1: msgspec.json.decode(msgspec.json.encode(record), type=Member)})
        frame = frame_at(store, 1.6)
        assert [(rank.state, rank.step) for rank in frame.ranks] == [("running", 7), ("finished", None)]
        assert frame.state == "running"
