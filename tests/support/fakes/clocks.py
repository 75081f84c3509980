"""A clock that stands until a test moves it."""

from __future__ import annotations

from typing import Generic, TypeVar

Time = TypeVar("Time", int, float)


class Clock(Generic[Time]):
    """Returns `now` when it is called: whole nanoseconds, or seconds."""

    def __init__(self, now: Time) -> None:
        self.now: Time = now

    def __call__(self) -> Time:
        return self.now
