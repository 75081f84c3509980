"""The user's settings: their values, bounds, defaults and meaning, and the file that changes them.

Knows neither screens nor sockets.  What the settings are about gets them as arguments, but for
the room on the disk, which each launch reads here.  Key bindings are checked in `keymap.check`,
which knows the actions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta, Struct

from ddptop.agent.run.files.settings_file import VARIABLE as VARIABLE
from ddptop.agent.run.files.settings_file import SettingsError as SettingsError
from ddptop.agent.run.files.settings_file import path as path
from ddptop.agent.run.records import ALL_BYTES, RUN_BYTES
from ddptop.agent.run.switches.thresholds import Outside, Profile
from ddptop.agent.run.switches.thresholds import Thresholds as Thresholds


class Look(Struct, frozen=True, forbid_unknown_fields=True):
    """How the dashboard looks; the text of each setting is what the user reads."""

    theme: Annotated[Literal["dark", "light"], Meta(description="Colors on a dark or on a light ground.")] = "dark"
    color: Annotated[
        Literal["auto", "none", "16", "256", "truecolor"],
        Meta(description="How many colors: auto asks the terminal; none does what NO_COLOR does."),
    ] = "auto"
    glyphs: Annotated[
        Literal["auto", "unicode", "ascii"],
        Meta(description="Characters to draw with: auto takes ascii where the locale's encoding is not UTF-8."),
    ] = "auto"
    view: Annotated[
        Literal["panels", "table", "heatmap", "timeline"], Meta(description="The first view of the ranks.")
    ] = "panels"
    hint: Annotated[
        bool, Meta(description="Say below the header what to press next, until that was pressed once on this machine.")
    ] = True


class Plain(Struct, frozen=True, forbid_unknown_fields=True):
    """Output without the dashboard."""

    interval_s: Annotated[float, Meta(ge=0, le=3600, description="Seconds between lines.")] = 2.0


class Storage(Struct, frozen=True, forbid_unknown_fields=True):
    """Room that runs take on the disk."""

    run_mib: Annotated[
        int,
        Meta(
            ge=8,
            le=1 << 24,
            description="Disk room of one run in MiB: older steps become means, logs lose their middle, old events go.",
        ),
    ] = RUN_BYTES >> 20
    all_mib: Annotated[
        int,
        Meta(ge=8, le=1 << 24, description="All runs together take so many MiB: the oldest ended ones are removed."),
    ] = ALL_BYTES >> 20


class Remote(Struct, frozen=True, forbid_unknown_fields=True):
    """Runs of other machines."""

    command: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1000,
            description="What starts ddptop on other machines: a piece of a command line for the shell there.",
        ),
    ] = "ddptop"


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be set."""

    look: Look = Look()
    plain: Plain = Plain()
    thresholds: Thresholds = Thresholds()
    profile: Profile = Profile()
    outside: Outside = Outside()
    storage: Storage = Storage()
    remote: Remote = Remote()
    keys: Mapping[str, str | Mapping[str, str]] = {}

    @property
    def keymap(self) -> dict[str, str]:
        """Keys by the id of an action; `run.pause` may be written with or without quotes in TOML."""
        flat: dict[str, str] = {}
        for name, value in self.keys.items():
            if isinstance(value, str):
                flat[name] = value
            else:
                flat |= {f"{name}.{rest}": keys for rest, keys in value.items()}
        return flat


def load() -> Settings:
    """Return the user's settings, the defaults where there is no file.

    Raises:
        SettingsError: the file cannot be read or holds what cannot be.
    """
    file = path()
    try:
        return msgspec.toml.decode(file.read_bytes(), type=Settings)
    except FileNotFoundError:
        if os.environ.get(VARIABLE):
            raise SettingsError(f"{file}: no such file, and {VARIABLE} names it; make it or unset that") from None
        return Settings()
    except OSError as problem:
        raise SettingsError(f"{file}: {problem.strerror}") from None
    except msgspec.ValidationError as problem:
        raise SettingsError(f"{file}: {_told(problem)}; `ddptop config` lists what can be set") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise SettingsError(f"{file}: not TOML: {problem}") from None


def load_or_default() -> tuple[Settings, SettingsError | None]:
    """Return the user's settings; where they cannot be used, the defaults and the reason."""
    try:
        return load(), None
    except SettingsError as problem:
        return Settings(), problem


def _told(problem: msgspec.ValidationError) -> str:
    """Return `look.theme: 'drak' is not one of dark, light` for what msgspec says with a path at its end."""
    text, _, place = str(problem).partition(" - at `$")
    where = place.rstrip("`").lstrip(".").replace("[...]", "")
    value = text.removeprefix("Invalid enum value ")
    section, _, name = where.partition(".")
    if value != text and (allowed := _allowed(section, name)):
        return f"{where}: {value} is not one of {', '.join(allowed)}"
    said = text[:1].lower() + text[1:]
    return f"{where}: {said}" if where else said


def as_toml(settings: Settings, keys: Iterable[tuple[str, str, str, str]]) -> Iterator[str]:
    """Yield the lines of a file with these settings; what has its default is there as a comment.

    Args:
        settings: what to write.
        keys: id, key now, default key and meaning of every action.
    """
    default = Settings()
    for section in ("look", "plain", "thresholds", "profile", "outside", "storage", "remote"):
        now, usual = getattr(settings, section), getattr(default, section)
        yield f"[{section}]"
        for name, hint in get_type_hints(type(now), include_extras=True).items():
            yield f"# {hint.__metadata__[0].description}{_choices(hint)}"
            yield _line(name, getattr(now, name), getattr(usual, name))
        yield ""
    yield "[keys]"
    yield '# By action; several keys are separated by commas, as in pause = "space,p".'
    for name, now_keys, default_keys, meaning in keys:
        yield f"# {meaning}."
        yield _line(name, now_keys, default_keys)


def _line(name: str, value: Any, default: Any) -> str:
    written = f"{name} = {_written(value)}"
    return f"# {written}" if value == default else f"{written}  # default: {_written(default)}"


def _written(value: Any) -> str:
    # A JSON string is a TOML string, and a JSON number a TOML number.
    return msgspec.json.encode(value).decode()


def _allowed(section: str, name: str) -> tuple[str, ...]:
    """Return the texts that a setting may be; none where it is no choice among texts, or there is no such setting."""
    hints = get_type_hints(type(getattr(Settings(), section, None)), include_extras=True)
    return getattr(getattr(hints.get(name), "__origin__", None), "__args__", ())


def _choices(hint: Any) -> str:
    """Return what a setting may be, where that is a list or a range."""
    if hint.__origin__ is bool:
        return " One of true, false."
    allowed = getattr(hint.__origin__, "__args__", ())
    if allowed and isinstance(allowed[0], str):
        return f" One of {', '.join(allowed)}."
    meta = hint.__metadata__[0]
    return "" if meta.ge is None else f" From {meta.ge:,} to {meta.le:,}."
