"""The command line. Imports only what the verb at hand needs: `--help` loads no ZeroMQ, no Textual, no torch."""

from __future__ import annotations

import argparse
import os
import re
import sys
from importlib import import_module
from typing import Any, Final, NoReturn

from ddptop.agent.text import Complaint, clean
from ddptop.agent.version import VERSION
from ddptop.tui.cli.complaint import complain

EPILOG = """\
Alone, on a terminal, it lists all runs: look at one, launch another.

first steps:
  ddptop launch --world 4 resnet          train a ResNet on four ranks and watch it
  ddptop launch train.py -- --lr 0.1      any script, unmodified; its own options after --
  ddptop attach                           come back to it from any terminal
  ddptop kill RUN                         end it, and everything that belongs to it
  ddptop help                             the manual: keys, numbers, verdicts, control, ...
"""


FAMILIES: Final = {
    "launch": "launch", "restart": "launch",
    "attach": "watching", "watch": "watching", "logs": "watching",
    "ps": "listing", "status": "listing", "events": "listing", "programs": "listing",
    "pause": "control", "step": "control", "resume": "control", "checkpoint": "control", "stop": "control",
    "kill": "kill",
    "clean": "cleaning",
    "serve": "serving",
    "help": "reference", "config": "reference",
    "completion": "completion",
}  # fmt: skip
"""By verb, the module of its family; in the order of `--help`."""


def main() -> None:
    """Run `ddptop` and exit with its code: 0 done, 1 refused or failed, 2 bad input."""
    if "_ARGCOMPLETE" in os.environ:
        # The shell asks what may stand at the cursor.
        from ddptop.tui.cli import completion

        completion.answer(_parser)
    arguments, program_arguments = _split(sys.argv[1:])
    if arguments == ["--version"]:
        print(f"ddptop {VERSION}")
        return
    parser = _parser(next(iter(arguments), None))
    options = parser.parse_args(arguments)
    if program_arguments and options.verb != "launch":
        parser.error(f"nothing can follow -- for {options.verb}")
    options.arguments = tuple(program_arguments)
    try:
        code = _run(options)
    except BrokenPipeError:
        # The reader of our pipe has gone, as `head` does; nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except KeyboardInterrupt:
        code = 130
    raise SystemExit(code)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Divide at the first `--`: ours before it, the program's after it."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


_UNKNOWN_VERB: Final = r"argument VERB: invalid choice: '(.*?)' \(choose from "


class _Formatter(argparse.HelpFormatter):
    """As wide as the terminal.

    argparse makes a formatter for each option that is added; its own asks `shutil`, which loads compressors.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


class _VerbatimFormatter(_Formatter, argparse.RawDescriptionHelpFormatter):
    """Leaves the lines of description and epilog as they are."""


def _columns() -> int:
    """Return the columns of the terminal, by `$COLUMNS` before all else, as `shutil.get_terminal_size` does."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and len(given) < 10 and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80 if sys.__stdout__ else 80
    except (OSError, ValueError):
        return 80


class _Parser(argparse.ArgumentParser):
    """Complains in one line that says what to do."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": _Formatter, **settings})

    def error(self, message: str) -> NoReturn:
        if "unrecognized arguments" in message and "launch" in sys.argv[1:2]:
            message += " (options of the program itself go after --, as in `ddptop launch train.py -- --lr 0.1`)"
        elif unknown := re.match(_UNKNOWN_VERB, message):
            import difflib

            near = difflib.get_close_matches(unknown[1], FAMILIES, n=1)
            message = f"no verb {unknown[1]!r}" + (f" (did you mean {near[0]!r}?)" if near else "")
        print(f"{self.prog}: {clean(message)}; `{self.prog} --help` tells more", file=sys.stderr)
        raise SystemExit(2)


def _parser(verb: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of a verb; of all of them where it is none."""
    parser = _Parser(
        prog="ddptop",
        description="htop for a distributed PyTorch run: launch a training group, watch every rank, pause or kill it.",
        epilog=EPILOG,
        formatter_class=_VerbatimFormatter,
    )
    parser.set_defaults(carry=_home, plain=False)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", parser_class=_Parser, prog="ddptop")
    families = dict.fromkeys(FAMILIES.values()) if verb not in FAMILIES else (FAMILIES[verb],)
    for family in families:
        import_module(f"ddptop.tui.cli.verbs.{family}").add(verbs)
    return parser


def _home(options: argparse.Namespace) -> int:
    from ddptop.tui.cli.verbs import watching

    return watching.home(options)


def _run(options: argparse.Namespace) -> int:
    if options.version:
        print(f"ddptop {VERSION}")
        return 0
    if options.verb is None:
        from ddptop.tui.cli.verbs.options import on_terminal

        if not on_terminal(options):
            _parser().print_help()
            return 0
    if sys.stdout.encoding.lower() != "utf-8":
        from ddptop.tui.drawing import glyphs

        glyphs.let_print()
    try:
        return int(options.carry(options))
    except Complaint as problem:
        from ddptop.agent.run.rundir import RunDirError
        from ddptop.tui.settings import SettingsError

        if not isinstance(problem, RunDirError | SettingsError):
            raise
        return complain(problem, 2)


if __name__ == "__main__":
    main()
