"""Messages of ranks that go out together: each once, in order, in pieces that a reader takes."""

from __future__ import annotations

from support.fakes.ranks import beat, step, steps

from ddptop.agent import wire
from ddptop.agent.observer.relay.door.bundling import PIECE, Bundling


def test_a_bundle_has_what_has_come_since_the_last() -> None:
    """Where nothing has come, nothing is sent."""
    sent: list[bytes] = []
    bundling = Bundling(sent.append)
    bundling.send()
    told = steps(0, 1), beat(1, 3), steps(0, 2)
    for message in told:
        bundling.add(wire.encode(message))
    bundling.send()
    bundling.send()
    assert [wire.read_telemetry(each) for each in sent] == [wire.Bundle(told)]


def test_a_bundle_is_no_larger_than_what_a_reader_takes() -> None:
    """Much goes out in several bundles, a large message by itself, and one that a reader would not take not at all."""
    sent: list[bytes] = []
    bundling = Bundling(sent.append)
    small = [steps(0, *range(number, number + 100)) for number in range(0, 2_000, 100)]
    large = wire.Steps(1, tuple(step(number) for number in range(3_000)))
    beyond = wire.Steps(1, tuple(step(number) for number in range(40_000)))
    assert PIECE < len(wire.encode(large)) < wire.MAX_MESSAGE_BYTES < len(wire.encode(beyond))
    told: list[wire.Telemetry] = [*small, large, beyond, beat(0, 1)]
    for message in told:
        bundling.add(wire.encode(message))
    bundling.send()
    assert all(len(payload) <= wire.MAX_MESSAGE_BYTES for payload in sent)
    bundles = [wire.read_telemetry(payload) for payload in sent]
    received = [each for bundle in bundles if isinstance(bundle, wire.Bundle) for each in bundle.messages]
    assert received == [message for message in told if message is not beyond]
    assert max(len(payload) for payload in sent if wire.encode(large) not in payload) < PIECE + 1_000
