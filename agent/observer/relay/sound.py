"""The messages of ranks that can be true, as far as one message by itself shows it.

A rank may claim anything. The run has so many ranks and generations, and the file so much room.
"""

from __future__ import annotations

from typing import Final

from ddptop.agent import wire

LARGEST_LATEST: Final = 16 << 10
"""Bytes of a `Hello` or a `Beat` at most; the file has one of each for every rank."""


def is_sound(message: wire.Telemetry | wire.NumberedSteps, size: int, world: int, generation: int) -> bool:
    """Say whether a rank may have sent a message.

    Args:
        message: the message.
        size: its bytes.
        world: number of ranks of the run.
        generation: the newest generation known. The ranks of the next one may speak before the observer has found them.
    """
    # In the order of their frequency. The decoder has checked that all numbers fit.
    # `isinstance` asks the metaclass of these classes, which takes ten times as long as to compare them.
    if type(message) is wire.Steps or type(message) is wire.NumberedSteps:
        return message.rank < world and message.generation <= generation + 1 and bool(message.steps)
    if type(message) is wire.Beat:
        return message.rank < world and size <= LARGEST_LATEST
    if type(message) is wire.Summary or type(message) is wire.Checksums:
        return message.rank < world and message.generation <= generation + 1
    if type(message) is wire.Event:
        return message.rank is None or message.rank < world
    if type(message) is wire.Hello:
        return message.rank < world and message.generation <= generation + 1 and size <= LARGEST_LATEST
    return False  # for the observer to send
