"""From where on something is said of a run. The user's settings change it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Thresholds(Struct, frozen=True, forbid_unknown_fields=True):
    """From where on something is told."""

    silent_s: Annotated[
        float, Meta(ge=1.5, le=3600, description="A rank is silent after so many seconds without a heartbeat.")
    ] = 3.5
    stalled_s: Annotated[
        float,
        Meta(ge=0.1, le=86_400, description="A rank is stalled after so many seconds, and ten usual steps, in one."),
    ] = 10.0
    slowest_factor: Annotated[
        float, Meta(ge=1, le=100, description="A rank is called the slowest from so many times the usual own time.")
    ] = 1.15
    verdict_share: Annotated[
        float, Meta(ge=0, le=1, description="A verdict that costs less than this share of a step is hidden.")
    ] = 0.0
