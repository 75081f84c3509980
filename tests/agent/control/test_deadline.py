"""A command that is read after its deadline is refused, one of an older onlooker never is."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.agent import wire
from ddptop.agent.control import deadline

ACTING = [
    wire.Hold(1, "t"),
    wire.Commit(1, "t", 7),
    wire.Keep(1, "t"),
    wire.Resume(1),
    wire.Advance(1, 7),
    wire.End(1, "ada"),
    wire.Save(1, "t"),
    wire.Act(1, "stop", "ada"),
    wire.Cancel(1, "ada"),
    wire.Kill(1, 5.0, who="ada"),
]
ASKING = [wire.Fill(1), wire.Inspect(1), wire.Check(1, 7)]


@pytest.mark.parametrize("command", ACTING, ids=lambda command: type(command).__name__)
def test_what_acts_is_refused_after_its_deadline_and_only_then(command: wire.Command) -> None:
    """It is in time at first, and too late once the time is over, also after the way over the wire."""
    fresh = wire.read_command(wire.encode(deadline.limited(command, 600)))
    assert deadline.lateness(fresh) is None
    assert deadline.lateness(deadline.limited(command, -1.0)) is not None
    asked = deadline.now_ns() - int(34.2e9)
    late = wire.read_command(wire.encode(msgspec.structs.replace(command, asked_ns=asked, until_ns=asked + 2 * 10**9)))
    assert deadline.lateness(late) == "came too late: asked 34 s ago; nothing was done"


@pytest.mark.parametrize("command", ASKING, ids=lambda command: type(command).__name__)
def test_what_only_asks_has_none(command: wire.Command) -> None:
    """An answer that comes late harms nobody."""
    assert deadline.limited(command, -1.0) is command
    assert deadline.lateness(command) is None


@pytest.mark.parametrize("command", ACTING, ids=lambda command: type(command).__name__)
def test_an_older_onlooker_is_obeyed(command: wire.Command) -> None:
    """A command as it was before there were deadlines, two fields shorter, is read and never too late."""
    older = msgspec.msgpack.decode(wire.encode(command))[:-2]
    read = wire.read_command(msgspec.msgpack.encode(older))
    assert read == command
    assert deadline.lateness(read) is None


def test_the_clock_of_deadlines_cannot_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A day's jump of the wall clock makes nothing late and keeps nothing from being late."""
    command = deadline.limited(wire.Kill(1, 5.0), 60.0)
    expired = deadline.limited(wire.Kill(1, 5.0), -1.0)
    for jump in (-86_400, 86_400):
        monkeypatch.setattr(time, "time", lambda jump=jump: 1.7e9 + jump)
        monkeypatch.setattr(time, "time_ns", lambda jump=jump: int(1.7e18) + jump * 10**9)
        assert deadline.lateness(command) is None
        assert deadline.lateness(expired) is not None


@settings(deadline=None, max_examples=200)
@given(st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.integers(-(2**63), 2**63 - 1))
def test_whatever_is_given_as_deadline_is_judged(asked: int | None, until: int | None) -> None:
    """No number that the wire can carry makes the judgement raise; without a deadline nothing is late."""
    command = wire.read_command(wire.encode(wire.Kill(1, 5.0, asked_ns=asked, until_ns=until)))
    late = deadline.lateness(command)
    assert (late is None) if until is None else (late is None) == (until > deadline.now_ns() - 10**9)
