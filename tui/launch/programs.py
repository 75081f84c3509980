"""The options of the programs of the catalogue, as each prints them in a process of its own.

A program imports torch, the dashboard must not; so it is started, asked to describe itself, and read.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from ddptop.agent.client.host.program import isolated
from ddptop.agent.text import clean
from ddptop.agent.wire.incoming import cleaned
from ddptop.agent.wire.vocabulary.refusals import Refused
from ddptop.trainers import CATALOGUE
from ddptop.trainers.rank.options import DESCRIBE, positive_number, whole_number
from ddptop.tui.launch.options import AS_MODULE

PATIENCE_S: Final = 60.0
"""To import torch may take long on a busy machine."""


class Option(msgspec.Struct, frozen=True):
    """One option of a program."""

    flag: str
    """`--batch-size`."""
    help: str
    group: str = ""
    default: str | None = None
    choices: tuple[str, ...] | None = None
    switch: bool = False
    """True where it takes no value."""
    metavar: str = ""
    type: str = ""
    """Name of what reads its value; empty for text."""
    least: int | None = None
    """Of a whole number."""
    most: int | None = None

    def problem(self, text: str) -> str | None:
        """Return what is wrong with a value, None for a good one."""
        if self.choices is not None:
            return None if text in self.choices else f"one of {', '.join(self.choices)}"
        try:
            if self.least is not None:
                whole_number(self.least, self.most)(text)
            elif self.type == positive_number.__name__:
                positive_number(text)
        except argparse.ArgumentTypeError as problem:
            return str(problem)
        return None


# Made here, once: two threads that make one at a time end the process (msgspec 0.22).
_DECODER: Final = msgspec.json.Decoder(tuple[Option, ...])


def ask(program: str) -> tuple[Option, ...]:
    """Return the options of a program of the catalogue. Takes seconds.

    Raises:
        Refused: it does not print them, one line.
    """
    command = isolated(CATALOGUE[program].module)
    environment = {**os.environ, DESCRIBE: "1"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False
        )
        return tuple(map(cleaned, _DECODER.decode(done.stdout)))
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Refused(f"{program} does not tell its options: {clean(str(problem), 200)}") from problem
    except msgspec.MsgspecError as problem:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = clean(said[-1], 200) if said else f"exit code {done.returncode}"
        raise Refused(f"{program} does not tell its options: {why}") from problem


_MOST_ENTRIES: Final = 5000
"""Entries of a folder that are read: one with a million images is no place of scripts."""
_MOST_OFFERED: Final = 200
_MOST_RECENT: Final = 5
"""Recent programs that are offered while nothing is typed."""
_SHORTEST_WORD: Final = 3
"""Letters that are looked for in the notes."""
_PATH: Final = re.compile(r"[~./]|.*/")
"""How a word begins that can only be a path."""


class Suggestion(NamedTuple):
    """A program that may be meant."""

    text: str
    """Stands in the field once it is chosen: a name of the catalogue, a path, or `-m` and a module."""
    note: str
    """Its kind, or its technique."""
    arguments: str | None = None
    """Those that it was launched with last; None where that is not known."""
    whole: bool = True
    """False for a folder or a package, of which a script or a module has still to be chosen."""


def suggestions(typed: str, recent: Sequence[Suggestion] = ()) -> list[Suggestion]:
    """Return what the typed text may mean: recent programs first, then what begins with it, then what contains it."""
    typed = typed.strip() if typed.strip() != AS_MODULE else f"{AS_MODULE} "
    if typed.startswith(f"{AS_MODULE} "):
        found = [_module(name) for name in modules(typed.removeprefix(AS_MODULE).strip())]
    else:
        here = [_path(path) for path in paths(typed)]
        programs = [] if _PATH.match(typed) else [Suggestion(each.name, each.technique) for each in CATALOGUE.values()]
        # Folders last: a repository has many of them, and few are on the way to a script.
        found = [*(each for each in here if each.whole), *programs, *(each for each in here if not each.whole)]
    earlier = [each for each in recent if typed.casefold() in each.text.casefold()][: None if typed else _MOST_RECENT]
    taken = {each.text for each in earlier}
    later = [each for each in found if each.text not in taken and _rank(each, typed) is not None]
    if typed not in {*taken, *(each.text for each in later)} and os.path.isfile(os.path.expanduser(typed)):
        # A script may be called anything.
        later.append(_path(typed))
    # Stable: what fits equally well stays in its order.
    offered = earlier + sorted(later, key=lambda each: _rank(each, typed) or 0)
    # What is typed to its end comes first: it is marked, and must not become another program.
    return sorted(offered, key=lambda each: each.text != typed)[:_MOST_OFFERED]


def _rank(suggestion: Suggestion, typed: str) -> int | None:
    """Return 0 where the name begins with what is typed, more where it fits less, None where it does not fit."""
    text, words = suggestion.text.casefold(), typed.casefold()
    if text.startswith(words):
        return 0
    if words in text:
        return 1
    # "pipeline" and "fsdp" are looked for among the techniques; two letters are in all of them.
    about = len(words) >= _SHORTEST_WORD and f" {words}" in f" {suggestion.note.casefold()}"
    return 2 if about else None


def completed(typed: str, found: Sequence[Suggestion]) -> str:
    """Return the typed text with as much behind it as all suggestions that begin with it share."""
    texts = [each.text for each in found if each.text.startswith(typed)]
    # What the first and the last one share, in the order of characters, all share.
    first, last = min(texts, default=typed), max(texts, default=typed)
    differing = (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other)
    return first[: next(differing, min(len(first), len(last)))]


def paths(typed: str) -> list[str]:
    """Return the folders, with a slash behind them, and the Python files that a typed path may become, as it is typed.

    Hidden ones are left out until their dot is typed, as a shell does, and so are names that nobody can type.
    """
    folder, slash, stem = typed.rpartition("/")
    place = os.path.expanduser(folder + slash) or "."
    found = [
        folder + slash + entry.name + ("/" if _is_folder(entry) else "")
        for entry in _entries(place)
        if (entry.name.startswith(stem) or (not slash and stem.casefold() in entry.name.casefold()))
        and entry.name.startswith(".") <= stem.startswith(".")
        and entry.name.isprintable()
        and entry.name != "__pycache__"
        and (entry.name.endswith(".py") or _is_folder(entry))
    ]
    return sorted(found)


def modules(typed: str) -> list[str]:
    """Return the modules of this folder that a typed name may become, and the folders, with a dot behind each.

    A folder may be a package without an `__init__.py`.
    """
    package, dot, stem = typed.rpartition(".")
    place = os.path.join(*package.split("."), "") if package else "."
    if "/" in typed:
        return []
    found = []
    for entry in _entries(place):
        name, is_script = entry.name.removesuffix(".py"), entry.name.endswith(".py")
        if not name.startswith(stem) or not name.isidentifier() or name == "__init__":
            continue
        if is_script:
            found.append(package + dot + name)
        elif _is_folder(entry):
            # Whether there is Python in it is not looked up: that would read every folder at every key.
            found.append(f"{package}{dot}{name}.")
    return sorted(found)


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from islice(entries, _MOST_ENTRIES)
    except (OSError, ValueError):
        # Gone, not ours to read, or a name with a NUL in it: nothing is offered.
        return


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _path(path: str) -> Suggestion:
    return Suggestion(path, "folder", whole=False) if path.endswith("/") else Suggestion(path, "script")


def _module(name: str) -> Suggestion:
    text = f"{AS_MODULE} {name}"
    return Suggestion(text, "package", whole=False) if name.endswith(".") else Suggestion(text, "module")
