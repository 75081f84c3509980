"""Records of steps at times that a test chooses."""

from __future__ import annotations

from ddptop.agent.wire import Step

SECOND = 1_000_000_000
BASE = 1_800_000_000
"""Seconds since the epoch from which the times of these steps count."""


def step(
    number: int, end_s: float, wall_ms: float = 80.0, wait_ms: float | None = 20.0, loss: float | None = 1.0
) -> Step:
    """Return a step of which a quarter each is data, forward, backward and waiting."""
    wall = round(wall_ms * 1e6)
    part = wall // 4
    return Step(
        number, number, round((BASE + end_s) * SECOND), wall, part, part, part, 0,
        None if wait_ms is None else round(wait_ms * 1e6), wall - 3 * part - round((wait_ms or 0) * 1e6), loss,
    )  # fmt: skip
