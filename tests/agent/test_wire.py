"""What crosses a socket is read back as it was sent, and nothing else is let in."""

from __future__ import annotations

import contextlib
import random

import msgspec
import pytest

from ddptop.agent import wire

STEP = wire.Step(
    seq=7, step=7, end_at_ns=1, wall_ns=100, data_ns=10, forward_ns=20, backward_ns=30, optimizer_ns=5,
    wait_ns=None, other_ns=35, loss=float("inf"), samples=32,
    collectives=(wire.Collective("all_reduce", 5, None, 1024, 2),), metrics={"lr": 0.1},
)  # fmt: skip


@pytest.mark.parametrize(
    ("message", "read"),
    [
        (wire.Steps(3, (STEP,)), wire.read_telemetry),
        (wire.Summary(3, 1, 9, 7, 7, 2, 100, 10, 20, 30, 5, None, 35, metrics={"lr": 0.1}), wire.read_telemetry),
        (wire.Event(1, "text", None, "warning"), wire.read_telemetry),
        (wire.RunState(1, "killing", 12), wire.read_telemetry),
        (wire.Hold(1, "token"), wire.read_command),
        (wire.Kill(1, 5.0, None, "ada"), wire.read_command),
        (wire.Reply(1, False, "no", 3), wire.read_answer),
        (wire.Steps(0, ()), wire.read_answer),
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
        for read in (wire.read_telemetry, wire.read_command, wire.read_answer):
            with contextlib.suppress(wire.Unreadable):
                read(bytes(junk))
    for nest in (b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b""):
        with pytest.raises(wire.Unreadable):
            wire.read_command(nest)


def test_a_newer_peer_may_add_fields():
    """Fields that a later version appends are skipped, so old and new can talk."""
    newer = [*msgspec.msgpack.decode(wire.encode(wire.Event(1, "text"))), "a field of the future"]
    assert wire.read_telemetry(msgspec.msgpack.encode(newer)) == wire.Event(1, "text")
