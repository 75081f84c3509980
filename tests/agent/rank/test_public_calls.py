"""What a script says to `ddptop.agent`: it takes what it can, and never raises."""

from __future__ import annotations

import decimal
import fractions
import itertools
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bases import marked
from support.values.messages import read_steps

from ddptop import agent
from ddptop.agent import wire
from ddptop.agent.rank.calls.script import MOST_METRICS
from ddptop.agent.rank.session import Session
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.wire import incoming


class Raising:
    """Raises whatever it is asked, its class included."""

    def _raise(self, *_: object) -> Any:
        raise RuntimeError("\ud800 no")

    __class__ = property(_raise)
    __float__ = __index__ = __int__ = __str__ = __repr__ = __iter__ = __len__ = __bool__ = __fspath__ = _raise
    __eq__ = __hash__ = __format__ = __call__ = _raise
    items = property(_raise)


class Text(str):
    """A string whose methods raise."""

    __slots__ = ()

    def __getitem__(self, _: object) -> str:
        raise RuntimeError("no")

    def __str__(self) -> str:
        raise RuntimeError("no")

    isascii = split = encode = __getitem__  # type: ignore[assignment]


class Whole(int):
    """A number that raises where it is to become another."""

    def __index__(self) -> int:
        raise RuntimeError("no")

    def __float__(self) -> float:
        raise RuntimeError("no")


class Endless(dict):  # type: ignore[type-arg]
    """A mapping without an end, or with one that raises."""

    def items(self) -> Any:
        return ((f"place{number}", number) for number in itertools.count())


class Broken(dict):  # type: ignore[type-arg]
    """A mapping that raises after its first item."""

    def items(self) -> Any:
        yield "data", 3
        raise RuntimeError("no")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """The session of this process, open: its thread publishes what is taken."""
    folder = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
    (folder / "ranks").mkdir()
    made = Session(RunDir(marked(folder)), run_id="calls", program="calls", log=None)
    made.open()
    yield made
    made.close(0, None, None)
    agent._listener = None
    shutil.rmtree(folder)


numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.sampled_from([10**400, -(10**400), 2**80, 2**63, 2**63 - 1, 10**5000, 1250.0, math.nan, math.inf]),
    st.fractions().map(lambda value: value),
    st.decimals(),
    st.complex_numbers(),
    st.sampled_from([np.int64(5), np.float16("nan"), np.bool_(True), np.array(3.0), np.array([1, 2]), np.array("x")]),
    st.just(fractions.Fraction(10**400, 3)),
    st.just(decimal.Decimal("sNaN")),
)
texts = st.one_of(
    st.text(),
    st.text(st.characters(categories=["Cs", "Cc", "Cf", "Co"])),
    st.sampled_from(["", "\x1b]0;x\x07", "x" * 100_000, "\ud800", "\x00"]),
    st.binary(),
    st.sampled_from([Text("text"), Text("\udfff")]),
)
odd = st.builds(lambda kind: kind(), st.sampled_from([Raising, object, Endless, Broken])) | st.just(Whole(7))
plain = numbers | texts
anything = st.one_of(
    st.none(),
    plain,
    odd,
    st.lists(plain, max_size=3),
    st.dictionaries(texts.filter(lambda key: type(key) is not Text), plain, max_size=12),
    st.just(lambda step: step),
)


@pytest.fixture(autouse=True)
def _fresh_names(session: Session) -> None:
    session._script._names.clear()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(anything, st.text(max_size=3))
def test_no_public_call_raises(session: Session, value: Any, name: Any) -> None:
    """3,000 generated arguments: no call raises, and the signs of life go on with what was taken."""
    agent.start(total_steps=value)
    agent.start(note=value)
    agent.start(coordinates=value)
    agent.start(coordinates={name: value})
    agent.start(value, **{name: value})  # type: ignore[call-arg]
    agent.log(value)  # type: ignore[call-arg]
    agent.log(**{name: value}, last=1)
    agent.on_checkpoint(value)
    agent.on_checkpoint(value, value)  # type: ignore[call-arg]
    agent.on_checkpoint(lambda step: value)
    assert session.saving.function is not None
    assert session.saving.save().done
    assert session.stamps._current.metrics["last"] == 1
    wire.encode(wire.Step(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, metrics=dict(session.stamps._current.metrics)))
    assert beat(session).faults == session.faults.count


def beat(session: Session) -> wire.Beat:
    found = wire.read_telemetry(wire.encode(session.beat(0, 0)))
    assert isinstance(found, wire.Beat)
    return found


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        (1250, 1250),
        (1250.0, 1250),
        (np.int64(7), 7),
        (np.float32(8), 8),
        (0, 0),
        (fractions.Fraction(6, 2), 3),
        (2**63 - 1, 2**63 - 1),
    ],
)
def test_steps_that_can_be_counted_are_taken(session, said, taken):
    """Whatever kind of number says so."""
    faults = session.faults.count
    agent.start(total_steps=said)
    assert (beat(session).total_steps, session.faults.count) == (taken, faults)


@pytest.mark.parametrize("said", [2**80, 2**63, -1, math.nan, math.inf, 1250.5, "1250", True, b"5", [5], object()])
def test_steps_that_cannot_be_counted_are_left_out(session, said):
    """And counted as a fault, which the next sign of life tells."""
    faults = session.faults.count
    agent.start(total_steps=said, note="kept")
    told = beat(session)
    assert (told.total_steps, told.note, told.faults) == (None, "kept", faults + 1)
    assert told.fault is not None
    assert told.fault.startswith("start(total_steps): ")


def test_a_note_is_one_clean_line(session):
    """A number is spelled out; what no encoding takes, and what a terminal would obey, is taken out."""
    for said, taken in ((5, "5"), (0.5, "0.5"), ("a\ud800\x1b[31mb\n c", "ab c"), ("x" * 500, "x" * 199 + "…")):
        agent.start(note=cast("str", said))
        assert beat(session).note == taken
    agent.start(note=cast("str", [1]))
    assert beat(session).note is None
    assert beat(session).fault == "start(note): TypeError: list is not a number"


def test_of_coordinates_what_can_be_is_taken(session):
    """A place that is no number is left out, the others are taken; so is what a mapping gave before it raised."""
    places: dict[str, Any] = {"a": "x", "data": np.int32(2), "\ud800": 1, "tensor": 1.0}
    agent.start(coordinates=places)
    assert beat(session).coordinates == {"data": 2, "tensor": 1}
    agent.start(coordinates=Broken())
    assert beat(session).coordinates == {"data": 3}
    agent.start(coordinates=Endless())
    assert beat(session).coordinates == {f"place{number}": number for number in range(8)}
    faults = session.faults.count
    agent.start(coordinates=cast("dict[str, int]", [("data", 1)]))
    assert (beat(session).coordinates, session.faults.count) == (None, faults + 1)


def test_metrics_that_are_numbers_are_taken(session):
    """Those of NumPy too; what is none is left out and named, without the value of a tensor being asked for."""

    class Tensor:
        def item(self) -> float:
            raise AssertionError("waited for")

        __float__ = item

    given: dict[str, Any] = {"b": np.float32(0.5), "c": decimal.Decimal("0.25"), "f": np.array(2.0)}
    agent.log(a=1, d=True, e=math.nan, **given)
    taken = session.stamps._current.metrics
    assert [taken[name] for name in "abcdf"] == [1.0, 0.5, 0.25, 1.0, 2.0]
    assert math.isnan(taken["e"])
    assert all(type(value) is float for value in taken.values())
    faults = session.faults.count
    agent.log(loss=cast("float", Tensor()), g=1)
    assert (session.faults.count, session.faults.last) == (faults + 1, "log(loss): TypeError: Tensor is not a number")
    agent.log(g=10**400)
    assert session.faults.last == "log(g): OverflowError: int too large to convert to float"


def test_long_names_that_begin_alike_stay_apart(session):
    """From the script to whoever reads: each name is one value, told once as a fault where it is cut."""
    names = [f"validation/{'accuracy ' * 5}at {top}" for top in (1, 5)] + ["x" * 999 + "a", "x" * 999 + "b", "y" * 40]
    before = session.faults.count
    for _ in range(2):
        agent.log(**{name: float(number) for number, name in enumerate(names)})
    taken = {known: session.stamps._current.metrics[known] for known in map(session._script._names.get, names)}
    assert list(taken.values()) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert session.faults.count == before + 4
    step = wire.Step(1, 1, 1, 1, 0, 0, 0, 0, None, 0, metrics=taken)
    (read,) = read_steps(wire.encode(wire.Steps(0, (step,))))
    assert read.metrics == taken
    assert max(map(len, taken)) == incoming.LONGEST_NAME


def test_the_names_of_metrics_are_bounded(session):
    """A script that logs ever new names does not fill the memory of its rank."""
    for number in range(2 * MOST_METRICS):
        agent.log(**{f"name{number}": 1})
    assert len(session._script._names) == MOST_METRICS
    assert "the rest is left out" in session.faults.last


@pytest.mark.parametrize(
    ("saved", "where", "fault"),
    [
        (None, "", None),
        ("a/b\ud800\x1b[2J", "a/b", None),
        (Path("c"), "c", None),
        (b"d\xff", "d", None),
        (True, "", "TypeError: expected str, bytes or os.PathLike object, not bool"),
        ({"epoch": 1}, "", "TypeError: expected str, bytes or os.PathLike object, not dict"),
        (Raising, "", "RuntimeError: no"),
    ],
)
def test_a_checkpoint_is_saved_whatever_its_function_returns(session, saved, where, fault):
    """What is no path is a fault and not an error of the training."""
    faults = session.faults.count
    agent.on_checkpoint(lambda step: saved() if saved is Raising else saved)
    done = session.saving.save()
    assert (done.done, done.text) == (True, where)
    assert session.faults.count == faults + (fault is not None)
    if fault is not None:
        assert session.faults.last.endswith(fault)


def test_what_a_checkpoint_function_raises_is_told(session):
    """Also where the exception cannot say what it is; the key that interrupts still does."""

    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

    def fail(step: int) -> None:
        raise Silent

    agent.on_checkpoint(fail)
    assert session.saving.save().text == "Silent: its message cannot be had"

    def interrupt(step: int) -> None:
        raise KeyboardInterrupt

    agent.on_checkpoint(interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.saving.save()


def test_what_cannot_be_called_replaces_nothing(session):
    """And a decorated function stays what it is."""

    def save(step: int) -> None:
        return None

    assert agent.on_checkpoint(save) is save
    assert agent.on_checkpoint(cast("Any", 5)) == 5
    assert session.saving.function is save
    assert session.faults.last == "on_checkpoint: TypeError: int cannot be called"


def test_one_bad_value_does_not_end_the_signs_of_life(session, monkeypatch):
    """Whatever cannot be encoded or had: that the rank lives, its step and the fault are told."""
    monkeypatch.setattr(session._script, "note", "\ud800")
    sent = []
    monkeypatch.setattr(session._publisher, "_send", lambda topic, payload: sent.append(payload))
    session._publisher._send_beat()
    told = wire.read_telemetry(sent[-1])
    assert isinstance(told, wire.Beat)
    assert (told.rank, told.note) == (session.rank, None)
    assert told.fault is not None
    assert told.fault.startswith("a sign of life: UnicodeEncodeError")
    monkeypatch.setattr(session._gauges, "_read", lambda device: os.stat("/nowhere"))
    monkeypatch.setattr(session._gauges, "_due", 0.0)
    monkeypatch.setattr(session._script, "note", None)
    session._publisher._send_beat()
    told = wire.read_telemetry(sent[-1])
    assert isinstance(told, wire.Beat)
    assert told.fault is not None
    assert told.fault.startswith("reading memory and load: FileNotFoundError")


def test_a_fault_before_the_first_sign_of_life_is_told(tmp_path):
    """The first beat has what went wrong before anybody listened."""
    folder = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
    session = Session(RunDir(marked(folder)), run_id="first", program="first\udcff", log=None)
    session.announce("many", None, None, None, None)
    told = beat(session)
    assert (told.faults, told.fault) == (1, "start(total_steps): TypeError: str is not a number")
    wire.encode(session.hello)
    shutil.rmtree(folder)
