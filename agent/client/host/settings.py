"""The user's settings: their values, bounds, defaults and meaning, and the file that changes them.

Knows neither screens nor sockets.  What the settings are about gets them as arguments, but for
the room on the disk, which each launch reads here.  Key bindings are checked in `keymap.check`,
which knows the actions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

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


KINDS: Final = ("hang", "death", "nan", "slow", "memory", "end")
"""What messages tell of."""


class Notify(Struct, frozen=True, forbid_unknown_fields=True):
    """Messages on runs that are launched from now on."""

    to: Annotated[
        tuple[str, ...],
        Meta(
            description="Where messages go, a list: https://HOST/PATH, exec:COMMAND, or what Apprise knows: ntfy://TOPIC."
        ),
    ] = ()
    kinds: Annotated[
        tuple[Literal["hang", "death", "nan", "slow", "memory", "end"], ...],
        Meta(description=f"What they tell of, a list of {', '.join(KINDS)}."),
    ] = KINDS
    slow_s: Annotated[float, Meta(ge=0, le=86400, description="Seconds for which a rank has to be slow.")] = 300.0
    heartbeat: Annotated[
        str, Meta(description="An https:// address that is asked again and again while a run is seen to live.")
    ] = ""
    heartbeat_s: Annotated[float, Meta(ge=5, le=86400, description="Seconds between two of these.")] = 60.0

    @property
    def is_wanted(self) -> bool:
        """True where anybody is to be told anything."""
        return bool(self.to or self.heartbeat)


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be set."""

    look: Look = Look()
    plain: Plain = Plain()
    thresholds: Thresholds = Thresholds()
    profile: Profile = Profile()
    outside: Outside = Outside()
    storage: Storage = Storage()
    remote: Remote = Remote()
    notify: Notify = Notify()
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


_SECRET: Final = frozenset({("notify", "to"), ("notify", "heartbeat")})
"""Settings that are not shown."""


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
    for section in ("look", "plain", "thresholds", "profile", "outside", "storage", "remote", "notify"):
        now, usual = getattr(settings, section), getattr(default, section)
        yield f"[{section}]"
        for name, hint in get_type_hints(type(now), include_extras=True).items():
            yield f"# {hint.__metadata__[0].description}{_choices(hint)}"
            value = getattr(now, name)
            if (section, name) in _SECRET and value:
                yield f"# {name} is set; it may hold secrets, and is not shown"
            else:
                yield _line(name, value, getattr(usual, name))
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
    hint = getattr(hints.get(name.partition("[")[0]), "__origin__", None)
    # One text, or a list of them.
    found = [each for each in (hint, *get_args(hint)) if get_origin(each) is Literal]
    return get_args(found[0]) if found else ()


def _choices(hint: Any) -> str:
    """Return what a setting may be, where that is a list or a range."""
    if hint.__origin__ is bool:
        return " One of true, false."
    if get_origin(hint.__origin__) is Literal:
        return f" One of {', '.join(get_args(hint.__origin__))}."
    meta = hint.__metadata__[0]
    return "" if meta.ge is None else f" From {meta.ge:,} to {meta.le:,}."
