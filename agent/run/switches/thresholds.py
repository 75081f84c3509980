"""From where on something is said of a run. The user's settings change it."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from ddptop.agent.run.files import settings_file


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


class Profile(Struct, frozen=True, forbid_unknown_fields=True):
    """Profiles that nobody has asked for."""

    on_verdict: Annotated[
        bool,
        Meta(description="Profile a rank that is accused of being slow, and an ordinary one, once that lasts 30 s."),
    ] = False
    most: Annotated[int, Meta(ge=1, le=100, description="Such profiles of one run at most.")] = 3


class Outside(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs that nobody prepared."""

    log: Annotated[
        tuple[str, ...],
        Meta(
            description="Lines of a log that name steps or losses: regular expressions with (?P<step>) or (?P<loss>)."
        ),
    ] = ()

    def __post_init__(self) -> None:
        """Raise `ValueError` for what is none."""
        for each in self.log:
            try:
                groups = re.compile(each).groupindex
            except re.error as problem:
                raise ValueError(f"{each!r} is no regular expression: {problem}") from None
            if not groups.keys() & {"step", "loss"}:
                raise ValueError(f"{each!r} has no (?P<step>) and no (?P<loss>)")


USUAL: Final = Thresholds()


class Settings(Struct):
    """The part of the user's settings that is read here."""

    thresholds: Thresholds = Thresholds()
    profile: Profile = Profile()
    outside: Outside = Outside()


def of_user() -> Settings:
    """Return the user's settings; the usual ones where there are none, or none that can be used."""
    try:
        return msgspec.toml.decode(settings_file.path().read_bytes(), type=Settings)
    except (OSError, settings_file.SettingsError, msgspec.MsgspecError, UnicodeDecodeError):
        # The dashboard says what is wrong with the file.
        return Settings()
