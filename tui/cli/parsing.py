"""The parser of the command line: help as wide as the terminal, and complaints of one line that say what to do."""

from __future__ import annotations

import argparse
import functools
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from ddptop.agent.client.diagnosis.kinds import DIAGNOSES
from ddptop.agent.text import clean

_UNKNOWN_VERB: Final = r"argument VERB: invalid choice: '(.*?)' \(choose from "
_NEGATIVE: Final = r"-\d+$|-\d*\.\d+$"
"""The words that argparse takes for a number and not for an option."""
_SIGNAL: Final = r"-(?:\d+|[A-Z][A-Z0-9+-]*)$"
"""How `kill` of a shell takes a signal: `-9`, `-KILL`."""
_HANGING: Final = 9
"""Columns before the rest of a line that does not fit."""
_FROM_ELSEWHERE: Final = {
    "--nproc-per-node": "--world", "--nproc_per_node": "--world", "--nproc": "--world", "--ranks": "--world",
    "--world_size": "--world", "-n": "--world", "-np": "--world", "--max_restarts": "--max-restarts",
    "--tail": "--follow", "-s": "--signal",
}  # fmt: skip
"""Options of torchrun, mpirun and others, by which newcomers call ours."""


class Formatter(argparse.HelpFormatter):
    """As wide as the terminal; leaves text of several lines as it is where it fits.

    argparse makes a formatter for each option that is added; its own asks `shutil`, which loads compressors.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=columns() - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        lines = text.split("\n")
        if max(map(len, lines)) <= width:
            return text
        import textwrap

        return "\n".join(textwrap.fill(line, width, subsequent_indent=" " * _HANGING) for line in lines)


def columns() -> int:
    """Return the columns of the terminal, by `$COLUMNS` before all else, as `shutil.get_terminal_size` does."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and len(given) < 10 and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80 if sys.__stdout__ else 80
    except (OSError, ValueError):
        return 80


def whole(least: int, most: int = 999_999_999) -> Callable[[str], int]:
    """Return a type of argparse: a whole number between two others, which its complaint names."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r}: say a whole number from {least:,} to {most:,}")
        return int(text)

    return read


class Parser(argparse.ArgumentParser):
    """Complains in one line that says what to do."""

    verbs: Collection[str] = ()
    """The names among which a wrong verb is looked for."""
    more: Callable[[Sequence[str]], str] | None = None
    """Says of the words of the line what to do with those that this verb does not know."""

    _apart: bool = False
    """True while options and arguments are read one after the other."""

    lenient: bool = False
    """True for a line that is half typed: an unknown option is taken for the nearest."""

    def __init__(self, **settings: Any) -> None:
        # A short form would become ambiguous with the next option that begins like it.
        super().__init__(**{"formatter_class": Formatter, "allow_abbrev": False, **settings})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse as argparse does, but name the unknown option: argparse takes its value for an argument of the verb."""
        given = sys.argv[1:] if args is None else list(args)
        if self.lenient:
            return super().parse_known_args(self._likely(given), namespace)
        if (name := self._unknown(given)) is not None:
            near = self._nearest(name)
            self.error(f"unknown option {name}" + (f" (did you mean {near}?)" if near else self._advice(given)))
        found, left = super().parse_known_args(given, namespace)
        if left and self._subparsers is None and not self._apart:
            # Until Python 3.12 an option before it hides an argument that may be left out: `compare A --json B`.
            self._apart = True
            found, left = self.parse_known_intermixed_args(given, namespace)
            self._apart = False
        if left and self._subparsers is None and not self._apart:
            self.error(f"unexpected argument {left[0]!r}{self._advice(given)}")
        return found, left

    def _likely(self, given: list[str]) -> list[str]:
        """Return the words with the nearest option in the place of each unknown one; without it, where none is near."""
        while (name := self._unknown(given)) is not None:
            place = next(index for index, word in enumerate(given) if word.partition("=")[0] == name)
            near = self._nearest(name)
            given[place : place + 1] = f"{near}{given[place][len(name) :]}".split(" ") if near else []
        return given

    def _unknown(self, given: Iterable[str]) -> str | None:
        known = self._option_string_actions
        last = ""
        for word in given:
            before, last = last, word
            if "--signal" in known and re.match(r"-\d+$", word) and before[:1] != "-":
                # As `kill` of a shell takes it; it is no number here.
                return word
            if len(word) < 2 or word[0] != "-" or " " in word or re.match(_NEGATIVE, word):
                if self._subparsers is not None:
                    # The rest is the verb's.
                    return None
                continue
            name = word.partition("=")[0]
            if name[:2] == "--":
                if name not in known:
                    return name
            elif name not in known and name[:2] not in known:
                return name
        return None

    def _nearest(self, name: str) -> str | None:
        import difflib

        known: Mapping[str, Any] = self._option_string_actions
        if _FROM_ELSEWHERE.get(name) in known:
            return _FROM_ELSEWHERE[name]
        if "--signal" in known and re.match(_SIGNAL, name):
            return f"--signal {name[1:]}"
        # Without the dashes, which all have in common.
        long = [each[2:] for each in known if each.startswith("--")]
        return next((f"--{each}" for each in difflib.get_close_matches(name.strip("-"), long, n=1)), None)

    def _advice(self, given: Sequence[str]) -> str:
        if self.more is not None:
            return self.more(given)
        # An option of a verb, without the verb.
        verbs = {} if self._subparsers is None else self._subparsers._group_actions[0].choices
        name = self._unknown(given)
        if not isinstance(verbs, Mapping) or name is None or name[:2] != "--" or name[2:] in verbs:
            return ""
        found = (f"{self.prog} {verb} {near}" for verb, each in verbs.items() if (near := each._nearest(name)))
        return next((f" (did you mean `{line}`?)" for line in found), "")

    def error(self, message: str) -> NoReturn:
        """Print the message in one line, and exit with 2."""
        if unknown := re.match(_UNKNOWN_VERB, message):
            import difflib

            near = difflib.get_close_matches(unknown[1], self.verbs, n=1)
            message = f"no verb {unknown[1]!r}" + (f" (did you mean {near[0]!r}?)" if near else "")
        print(f"{self.prog}: {clean(message)}; `{self.prog} --help` tells more", file=sys.stderr)
        raise SystemExit(2)


def complain(problem: object, code: int) -> int:
    """Print a problem in one line, on another machine for its user with the name of this one; return the exit code."""
    from ddptop.agent.client.acting import actor
    from ddptop.agent.text import clean

    here = f"{actor.named}: " if actor.named else ""
    print(f"ddptop: {here}{as_called(clean(str(problem)))}", file=sys.stderr)
    return code


FAMILIES: Final = {
    "launch": "launch", "restart": "launch",
    "attach": "watching", "watch": "watching", "logs": "watching",
    "ps": "listing", "status": "listing", "events": "listing", "report": "listing", "programs": "listing",
    "stacks": "listing",
    "pause": "control", "step": "control", "resume": "control", "checkpoint": "control", "stop": "control",
    "leave": "control",
    "checksum": "control", **dict.fromkeys(DIAGNOSES, "diagnosis"),
    "kill": "control",
    **dict.fromkeys(("compare", "baseline", "baselines", "gate", "keep", "pack"), "comparing"),
    "clean": "cleaning",
    "serve": "serving",
    "notify": "onlookers", "export": "onlookers",
    "help": "reference", "config": "reference", "completion": "reference",
}  # fmt: skip
"""By verb, the module of its family; in the order of `--help`."""
_ADVISED: Final = re.compile(rf"(?<![\w./-])ddptop (?=(?:{'|'.join(FAMILIES)})\b)")
"""The beginning of a command line of ours in a text."""


def as_called(text: str) -> str:
    """Return a text whose command lines begin as the user has called this program: `.venv/bin/ddptop attach`."""
    from ddptop.agent.client.acting import actor

    if actor.named or "ddptop" not in text:
        return text
    return _ADVISED.sub(lambda _: f"{_called(sys.argv[0])} ", text)


@functools.cache
def _called(word: str) -> str:
    """Return the first word of a command line of ours, as a shell takes it: `ddptop` where that finds this program."""
    import shlex
    import shutil

    if os.path.basename(word) != "ddptop" or not os.path.exists(word):
        return "ddptop"
    found = shutil.which("ddptop")
    return "ddptop" if found is not None and os.path.samefile(found, word) else shlex.quote(word)
