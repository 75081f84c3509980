"""Clocks that a test moves: one that stands until then, and one that goes on."""

from __future__ import annotations

import time
from typing import Generic, TypeVar

Time = TypeVar("Time", int, float)


class Clock(Generic[Time]):
    """Returns `now` when it is called: whole nanoseconds, or seconds."""

    def __init__(self, now: Time) -> None:
        self.now: Time = now

    def __call__(self) -> Time:
        return self.now


class Ahead:
    """The seconds of `time.monotonic`, which the test puts forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead
