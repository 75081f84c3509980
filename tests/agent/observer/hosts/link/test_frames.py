"""What may be in a message of a link: everything else is refused by one word."""

from __future__ import annotations

import pytest

from ddptop.agent import wire
from ddptop.agent.observer.hosts.link import frames


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (b"S", [b"steps/00017"]),
        (b"U", [b""]),
        (b"P", [b"steps/00017", bytes(wire.MAX_MESSAGE_BYTES)]),
        (b"C", [b"a" * 32, b"payload"]),
        (b"C", [b"a", b"65535", bytes(wire.MAX_COMMAND_BYTES)]),
        (b"A", [b"a", bytes(wire.MAX_MESSAGE_BYTES)]),
        (b"A", [b"a", b"0", b""]),
        (b"M", [b"[]"]),
    ],
)
def test_sound_messages_pass(kind: bytes, content: list[bytes]) -> None:
    assert frames.fault(kind, content) is None


@pytest.mark.parametrize(
    ("kind", "content", "fault"),
    [
        (b"", [], "kind"),
        (b"Z", [b""], "kind"),
        (b"SS", [b""], "kind"),
        (b"S", [], "frames"),
        (b"S", [b"a", b"b"], "frames"),
        (b"S", [b"a" * 33], "size"),
        (b"P", [b"steps"], "frames"),
        (b"P", [b"steps", b"", b""], "frames"),
        (b"P", [b"steps", bytes(wire.MAX_MESSAGE_BYTES + 1)], "size"),
        (b"C", [b"a" * 33, b""], "size"),
        (b"C", [b"a"], "frames"),
        (b"C", [b"a", b"655360", b""], "size"),
        (b"C", [b"a", b"1", bytes(wire.MAX_COMMAND_BYTES + 1)], "size"),
        (b"A", [b"a", b"1", b"", b""], "frames"),
        (b"K", [b"1", bytes(2)], "kind"),
        (b"H", [bytes(70_000)], "size"),
        (b"X", [bytes(2_000)], "size"),
        (b"T", [bytes(8)], "size"),
        (b"T", [bytes(17)], "size"),
        (b"t", [bytes(25)], "size"),
    ],
)
def test_others_are_refused(kind: bytes, content: list[bytes], fault: str) -> None:
    assert frames.fault(kind, content) == fault
