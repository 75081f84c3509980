"""Which keys do what, where: from the bindings themselves and the user's changes to them.

The help screen, the manual's page `keys`, `ddptop config` and the check of the user's keys all read
this one list of sections, so that none of them can be wrong.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final

from textual.app import App
from textual.binding import Binding, BindingsMap, InvalidBinding
from textual.dom import DOMNode
from textual.keys import Keys, format_key
from textual.screen import Screen

from ddptop.agent.client.host.settings import SettingsError, path
from ddptop.tui.app.keys.counting import DIGITS, PASSING
from ddptop.tui.screens.live import LiveScreen
from ddptop.tui.screens.plot import Plotted, PlottedScreen
from ddptop.tui.screens.run import RunScreen
from ddptop.tui.views.ranks import RankView

_OURS: Final = "ddptop.tui."
"""How the names of our own modules begin: the keys of Textual's widgets are not remapped here."""

_FIRST: Final[tuple[type[DOMNode], ...]] = (LiveScreen, RunScreen, RankView, PlottedScreen, Plotted)
"""The classes of `SECTIONS` whose keys the first screen may name."""

Remapped = Mapping[str, str]
"""By the id of a binding, its keys, separated by commas, where the user wants others."""

_WORDS: Final = {"left": "left", "right": "right", "up": "up", "down": "down", "enter": "enter", "escape": "esc"}
"""The names of keys where their signs cannot be written."""


@dataclass(frozen=True)
class Action:
    """One binding, all of its keys."""

    id: str
    keys: tuple[str, ...]
    default: tuple[str, ...]
    meaning: str

    @property
    def written(self) -> str:
        """The keys as they stand in a settings file."""
        return ",".join(map(_short, self.keys))

    @property
    def written_default(self) -> str:
        """The same of the keys it has by itself."""
        return ",".join(map(_short, self.default))


def _sections() -> tuple[tuple[str, type[DOMNode]], ...]:
    # Here, because it imports all screens and dialogs, which takes longer than the first screen itself.
    from ddptop.tui.app.keys.sections import SECTIONS

    return SECTIONS


def actions(app: type[App[Any]], remapped: Remapped | None = None) -> Iterator[tuple[str, Action]]:
    """Yield the section and the action of every binding."""
    for section, owner in _sections():
        owners = (owner, app) if owner is LiveScreen else (owner,)
        for each in owners:
            for action in _of(each, remapped or {}):
                yield section, action


KeyLines = list[tuple[str, str, str]]
"""Section, keys and meaning, a line for each."""
EVERYWHERE: Final = "everywhere"
"""The first section, with the keys of the app itself."""
_MOUSE: Final = "mouse", "Click chooses a rank, double click opens it"
_CLEAR: Final = ".clear"
"""How the ids of actions end that act only while a filter is set: another action may have the same key."""


def help_tables(
    app: type[App[Any]], remapped: Remapped, chain: Sequence[type], *, counts: bool, ascii_only: bool = False
) -> tuple[KeyLines, KeyLines]:
    """Return the keys that work where the user is, none of them twice, and those of everything else.

    Args:
        app: the app.
        remapped: the keys that the user has changed.
        chain: the classes of what is in focus, of what is around it, and of the app: the first that has a key takes
            it; one that only clears a filter leaves it to the next one, with its meaning.
        counts: True where a number of steps can be typed.
        ascii_only: True where keys are written in ASCII.
    """
    every = list(actions(app, remapped))
    sections = {action.id: section for section, action in every}
    here: list[Action] = []
    taken: set[str] = set()
    clears: dict[str, Action] = {}
    """By its key, what clears a filter, as long as nothing else has that key."""
    merged: set[str] = set()
    for owner in (each for node in chain for each in node.__mro__ if each.__module__.startswith(_OURS)):
        own = [action for action in _of(owner, remapped) if action.id in sections]
        own = [action for action in own if counts or action.id not in DIGITS | PASSING]
        for action in own:
            had = taken | clears.keys() if action.id in PASSING else taken
            left = tuple(key for key in action.keys if key not in had or action.id in DIGITS)
            if not left:
                continue
            for clear in [clears.pop(key) for key in left if key in clears]:
                here.remove(clear)
                merged.add(clear.id)
                action = replace(action, meaning=f"{clear.meaning} · {action.meaning}")
            here.append(replace(action, keys=left))
            if action.id.endswith(_CLEAR) and len(left) == 1:
                clears[left[0]] = here[-1]
        taken.update(key for action in own for key in action.keys if key not in clears)
    listed = {action.id for action in here} | merged
    rest = ((section, action) for section, action in every if action.id not in listed)
    return (
        _table(((sections[action.id], action) for action in here), ascii_only=ascii_only),
        _table(rest, ascii_only=ascii_only),
    )


def _table(found: Iterable[tuple[str, Action]], *, ascii_only: bool) -> KeyLines:
    """Return a line for each meaning in a section, and one for all meanings of a key."""
    meanings: dict[str, dict[str, list[str]]] = {}
    for section, action in found:
        keys = meanings.setdefault(section, {}).setdefault(action.meaning, [])
        keys += (shown(key, ascii_only=ascii_only) for key in action.keys)
    table: KeyLines = []
    for section, by_meaning in meanings.items():
        lines: dict[str, list[str]] = {}
        for meaning, keys in by_meaning.items():
            lines.setdefault(_together_written(keys), []).append(meaning)
        table += ((section, keys, " · ".join(told)) for keys, told in lines.items())
        if section == EVERYWHERE:
            table.append((section, *_MOUSE))
    return table


def _together_written(keys: Sequence[str]) -> str:
    """Return keys as they stand in a table, many digits as their first and last."""
    if len(keys) > 4 and "".join(keys) in "0123456789":
        return f"{keys[0]}-{keys[-1]}"
    return " ".join(keys)


def meant(owner: type[DOMNode], key: str, remapped: Remapped) -> tuple[str, ...]:
    """Return the ids of the actions that a class itself has on a key, whether they are offered now or not."""
    return tuple(action.id for action in _of(owner, remapped) if key in action.keys)


class Names(Mapping[str, str]):
    """By the id of an action, the first of its keys as the user reads it."""

    def __init__(self, app: type[App[Any]], remapped: Remapped, *, ascii_only: bool = False) -> None:
        """Know the keys of the first screen, and look the others up once they are asked for."""
        self._app = app
        self._remapped = remapped
        self._ascii_only = ascii_only
        self._names = {
            action.id: self._told(action) for owner in (*_FIRST, app) for action in _of(owner, self._remapped)
        }
        self._has_all = False

    def _told(self, action: Action) -> str:
        return shown(action.keys[0], ascii_only=self._ascii_only)

    def _all(self) -> dict[str, str]:
        if not self._has_all:
            self._has_all = True
            self._names = {action.id: self._told(action) for _, action in actions(self._app, self._remapped)}
        return self._names

    def __getitem__(self, name: str) -> str:
        found = self._names.get(name)
        return self._all()[name] if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def shown(key: str, *, ascii_only: bool = False) -> str:
    """Return a key as people know it: `⏎`, `ctrl+p`, `?`."""
    if ascii_only and key in _WORDS:
        return _WORDS[key]
    return _short(key) if len(_short(key)) == 1 else format_key(key)


def complete(app: type[App[Any]], remapped: Remapped) -> dict[str, str]:
    """Return `remapped` for `App.set_keymap`, with every action whose key one of these had.

    Textual takes a key away from all actions that are on it when one of them moves.
    """
    if not remapped:
        return {}
    every = [action for _, action in actions(app)]
    moved = {key for action in every if action.id in remapped for key in action.default}
    stay = {action.id: ",".join(action.default) for action in every if moved & set(action.default)}
    return {**stay, **{name: ",".join(_keys(keys)) for name, keys in remapped.items()}}


def check(app: type[App[Any]], remapped: Remapped) -> None:
    """Refuse keys that no keyboard has, actions that nobody has, and two actions on one key.

    Raises:
        SettingsError: in one line, what is wrong and what to do.
    """
    known = {action.id for _, action in actions(app)}
    for name, keys in remapped.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else "`ddptop config` lists the actions"
            raise _refused(f"keys.{name}: no such action; {hint}")
        try:
            singles = _keys(keys)
        except InvalidBinding:
            raise _refused(f"keys.{name}: no key; leave the line out to keep the default") from None
        for key in singles:
            if not _is_key(key):
                raise _refused(f"keys.{name}: no key is called {key!r}; it is a character, or as f5 or ctrl+x")
    for _, owner in _sections():
        _check_section(list(_together(owner, app, remapped)))


def _check_section(together: list[Action]) -> None:
    """Refuse two actions on one key that were not on one key before."""
    for one, other in combinations(together, 2):
        shared = set(one.keys) & set(other.keys) if PASSING.isdisjoint((one.id, other.id)) else ()
        if shared and one.id != other.id and not set(one.default) & set(other.default):
            name = _short(min(shared))
            raise _refused(f"keys: {one.id} and {other.id} are both on {name}; give one of them another key")


def _together(owner: type[DOMNode], app: type[App[Any]], remapped: Remapped) -> Iterator[Action]:
    """Yield all actions that a key can mean while `owner` has the focus."""
    if issubclass(owner, Screen):
        around: tuple[type[DOMNode], ...] = (app,)
    else:
        around = (app, LiveScreen, RunScreen)
    for each in (*around, *owner.__mro__):
        if issubclass(each, DOMNode) and each.__module__.startswith(_OURS):
            yield from _of(each, remapped)


def _of(owner: type[DOMNode], remapped: Remapped) -> Iterator[Action]:
    """Yield the actions that a class adds to those of the classes it builds on."""
    for binding in vars(owner).get("BINDINGS", ()):
        assert isinstance(binding, Binding), binding
        assert binding.id is not None, binding
        # A binding for several keys becomes one for each when it is used; the same happens here.
        default = tuple(key for key, _ in BindingsMap([binding]))
        keys = tuple(_keys(remapped[binding.id])) if binding.id in remapped else default
        yield Action(binding.id, keys, default, binding.tooltip)


def _refused(what: str) -> SettingsError:
    return SettingsError(f"{path()}: {what}")


def _keys(written: str) -> list[str]:
    return [key for key, _ in BindingsMap([Binding(written, "")])]


_CHARACTERS: Final = {_keys(chr(code))[0]: chr(code) for code in range(33, 127) if chr(code) != ","}
_NAMED: Final = {key.value for key in Keys} | {"space", "comma", *_CHARACTERS}


def _short(key: str) -> str:
    """Return the character of a key, its name where it has none."""
    return _CHARACTERS.get(key, key)


def _is_key(key: str) -> bool:
    *modifiers, last = key.split("+")
    return key in _NAMED or (last in _NAMED and set(modifiers) <= {"ctrl", "shift", "alt"})
