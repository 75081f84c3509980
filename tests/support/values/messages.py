"""Messages of the kind that a test expects; any other kind fails it."""

from __future__ import annotations

from ddptop.agent import wire
from ddptop.agent.observer.service.requests import Requests


def read_steps(payload: bytes) -> tuple[wire.Step, ...]:
    """Return the records of a message of steps."""
    message = wire.read_telemetry(payload)
    assert isinstance(message, wire.Steps), message
    return message.steps


def read_reply(payload: bytes) -> wire.Reply:
    """Return the reply to a command."""
    answer = wire.read_answer(payload)
    assert isinstance(answer, wire.Reply), answer
    return answer


def replies_of(requests: Requests) -> list[tuple[bytes, wire.Reply]]:
    """Return the replies that are ready, each with the sender of the command."""
    return [(sender, reply) for sender, reply in requests.replies() if isinstance(reply, wire.Reply)]


def read_answered_steps(payload: bytes) -> tuple[wire.Step, ...]:
    """Return the records of an answer to a command that asked for them."""
    answer = wire.read_answer(payload)
    assert isinstance(answer, wire.Steps), answer
    return answer.steps
