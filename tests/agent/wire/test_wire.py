"""What crosses a socket is read back as it was sent, and nothing else is let in."""

from __future__ import annotations

import contextlib
import random

import msgspec
import pytest
from msgspec import inspect
from support.values.messages import read_steps

from ddptop.agent import wire
from ddptop.agent.wire import codec

STEP = wire.Step(
    seq=7, step=7, end_at_ns=1, wall_ns=100, data_ns=10, forward_ns=20, backward_ns=30, optimizer_ns=5,
    wait_ns=None, other_ns=35, loss=float("inf"), samples=32,
    collectives=(wire.Collective("all_reduce", 5, None, 1024, 2),), metrics={"lr": 0.1},
)  # fmt: skip
PARAMETERS = wire.Parameters(
    7, (wire.Compared("0", 0, (0, 1), 2, (1,), 1, "0.bias", "rank 1's parameters differ"),), ("a part of its own",)
)


@pytest.mark.parametrize(
    ("message", "read"),
    [
        (wire.Steps(3, (STEP,)), wire.read_telemetry),
        (wire.Summary(3, 1, 9, 7, 7, 2, 100, 10, 20, 30, 5, None, 35, metrics={"lr": 0.1}), wire.read_telemetry),
        (wire.Event(1, "text", None, "warning"), wire.read_telemetry),
        (wire.Verdict(1, "slow_rank", "rank 2", 3, rank=2, every=10), wire.read_verdict),
        (wire.Bundle((msgspec.Raw(wire.encode(wire.Event(1, "text"))),)), wire.read_bundle),
        (wire.Hold(1, "token"), wire.read_command),
        (wire.Kill(1, 5.0, None, "ada"), wire.read_command),
        (wire.Act(1, "step", "ada", 3), wire.read_command),
        (wire.Cancel(2, "ada"), wire.read_command),
        (wire.Reply(1, False, "no", 3), wire.read_answer),
        (wire.Reply(1, False, "it hangs", refusal="hung"), wire.read_answer),
        (wire.Reply(1, True, parameters=PARAMETERS), wire.read_answer),
        (wire.Steps(0, ()), wire.read_answer),
        (wire.History(1, "loss", (0, 5), 7, 900, "step", 80, 4), wire.read_command),
        (wire.Extent(1, 1, 9, 12, False, ("lr",), 3), wire.read_history),
        (
            wire.HistoryPart(1, "loss", "time", 4, 10, 2, b"\0\0\0\0", b"\0\0\x80\x3f" * 2),
            wire.read_history,
        ),
    ],
)
def test_round_trip(message, read):
    """Every kind of message survives the wire unchanged."""
    assert read(wire.encode(message)) == message


def test_a_command_is_no_telemetry():
    """A message of one direction is refused in the other."""
    with pytest.raises(wire.Unreadable):
        wire.read_telemetry(wire.encode(wire.Resume(1)))


def test_garbage_is_refused_and_nothing_else_is_raised():
    """Whatever bytes come, the reader says Unreadable."""
    seed = random.Random(5)
    good = wire.encode(wire.Steps(0, (STEP,)))
    for _ in range(2000):
        junk = bytearray(good)
        for _ in range(seed.randrange(1, 4)):
            junk[seed.randrange(len(junk))] = seed.randrange(256)
        for read in (wire.read_telemetry, wire.read_command, wire.read_answer, wire.read_history):
            with contextlib.suppress(wire.Unreadable):
                read(bytes(junk))
    for nest in (b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b""):
        with pytest.raises(wire.Unreadable):
            wire.read_command(nest)


@pytest.mark.parametrize(
    "changes",
    [
        {"mean": b"\0" * 4},
        {"low": b"\0" * 4},
        {"at": b""},
        {"ranks": b"\0" * 7},
        {"columns": 3},
        {"columns": wire.MOST_COLUMNS + 1},
        {"width": 0},
        {"width": 1 << 53, "begin": 3},
    ],
)
def test_a_part_of_a_history_has_the_tables_that_it_claims(changes):
    """A table that is longer or shorter than its rows and columns, or lies beyond all steps, is refused when read."""
    table = b"\0" * 16
    part = wire.HistoryPart(1, "loss", "step", 4, 10, 2, b"\0" * 8, table, table, table, table, table)
    assert wire.read_history(wire.encode(part)) == part
    with pytest.raises(wire.Unreadable):
        wire.read_history(wire.encode(msgspec.structs.replace(part, **changes)))


def test_a_newer_peer_may_add_fields():
    """Fields that a later version appends are skipped, so old and new can talk."""
    newer = [*msgspec.msgpack.decode(wire.encode(wire.Event(1, "text"))), "a field of the future"]
    assert wire.read_telemetry(msgspec.msgpack.encode(newer)) == wire.Event(1, "text")


def test_a_beat_of_an_older_record_is_read():
    """A record outlives the version that wrote it: no field has come between those that a beat had before."""
    at = 1795702924000000000
    older = [
        *("beat", 1, at, "ended", "its script has ended", 30, at, 30, 711311360, 25272304640, 0.0, None, "cpu"),
        *("gloo", "2.14.1+cu130", None, None, "process-group hooks", 0, 0, 0, 0, None, None, 1, None, 1800.0, False),
        *(None, 0, True, None, 1, False, 314622, None, 46367),
    ]
    beat = wire.read_telemetry(msgspec.msgpack.encode(older))
    assert isinstance(beat, wire.Beat)
    assert (beat.step, beat.timeout_s, beat.communicated) == (30, 1800.0, True)
    assert (beat.cost_ns, beat.counted_cost_ns, beat.record_ns) == (314622, None, 46367)
    assert (beat.steps_are, beat.total_by) == ("", None)


@pytest.mark.parametrize(
    "kind", [wire.Collective, wire.Step, *wire.Telemetry.__args__, *wire.Command.__args__, *wire.HistoryAnswer.__args__]
)
def test_every_whole_number_is_bounded(kind):
    """No field takes a number that 63 bits do not hold."""

    def unbounded(found):
        match found:
            case inspect.IntType():
                return None in (found.ge, found.le) and None in (found.ge, found.lt)
            case inspect.UnionType(types):
                return any(map(unbounded, types))
            case inspect.VarTupleType(item):
                return unbounded(item)
            case inspect.DictType(key, value):
                return unbounded(key) or unbounded(value)
            case inspect.Metadata(inner):
                return unbounded(inner)
        return False

    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    assert [field.name for field in described.fields if unbounded(field.type)] == []


@pytest.mark.parametrize("changes", [{"seq": -1}, {"wall_ns": 1 << 60}, {"samples": 1 << 60}, {"end_at_ns": 1 << 63}])
def test_a_step_beyond_all_measure_is_no_message(changes):
    """Nor is a collective of one."""
    damaged = msgspec.structs.replace(STEP, **changes)
    call = msgspec.structs.replace(STEP.collectives[0], bytes=1 << 60)
    for step in (damaged, msgspec.structs.replace(STEP, collectives=(call,))):
        with pytest.raises(wire.Unreadable):
            wire.read_telemetry(wire.encode(wire.Steps(0, (step,))))


def test_names_that_are_remembered_are_bounded(monkeypatch):
    """A sender of ever new names, or of very many at once, does not fill the memory of who reads."""
    monkeypatch.setattr(codec, "MOST_PLAIN", 20)
    metrics: set[object] = set()
    calls: set[object] = set()
    monkeypatch.setattr(codec, "_plain_metrics", metrics)
    monkeypatch.setattr(codec, "_plain_calls", calls)
    for number in range(60):
        call = wire.Collective(f"op{number}", 5, None, 1024, 2)
        step = msgspec.structs.replace(STEP, metrics={f"name{number}": 1.0}, collectives=(call,))
        assert read_steps(wire.encode(wire.Steps(0, (step,)))) == (step,)
    assert (len(metrics), len(calls)) == (20, 20)
    metrics.clear()
    many = msgspec.structs.replace(STEP, metrics={f"name{number}": 1.0 for number in range(codec.MOST_NAMES)})
    wire.read_telemetry(wire.encode(wire.Steps(0, (many,))))
    assert not metrics
