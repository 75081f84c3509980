"""The command line. Imports only what the verb at hand needs: `--help` loads no ZeroMQ, no Textual, no torch."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from typing import Final, NoReturn

from ddptop.tui.cli.complaint import complain
from ddptop.tui.cli.verbs import cleaning, control, kill, launch, listing, reference, serving, watching
from ddptop.tui.cli.verbs.options import on_terminal

EPILOG = """\
Alone, on a terminal, it lists all runs: look at one, launch another.

first steps:
  ddptop launch --world 4 resnet          train a ResNet on four ranks and watch it
  ddptop launch train.py -- --lr 0.1      any script, unmodified; its own options after --
  ddptop attach                           come back to it from any terminal
  ddptop kill RUN                         end it, and everything that belongs to it
  ddptop help                             the manual: keys, numbers, verdicts, control, ...
"""


def main() -> None:
    """Run `ddptop` and exit with its code: 0 done, 1 refused or failed, 2 bad input."""
    arguments, program_arguments = _split(sys.argv[1:])
    parser = _parser()
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


_UNKNOWN_VERB: Final = re.compile(r"argument VERB: invalid choice: '(.*?)' \(choose from (.*)\)")


class _Parser(argparse.ArgumentParser):
    """Complains in one line that says what to do."""

    def error(self, message: str) -> NoReturn:
        # Here, because the package of the wire loads msgspec, which `--help` does without.
        from ddptop.agent.text import clean

        if "unrecognized arguments" in message and "launch" in sys.argv[1:2]:
            message += " (options of the program itself go after --, as in `ddptop launch train.py -- --lr 0.1`)"
        elif unknown := _UNKNOWN_VERB.match(message):
            near = difflib.get_close_matches(unknown[1], re.findall(r"\w+", unknown[2]), n=1)
            message = f"no verb {unknown[1]!r}" + (f" (did you mean {near[0]!r}?)" if near else "")
        print(f"{self.prog}: {clean(message)}; `{self.prog} --help` tells more", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ddptop",
        description="htop for a distributed PyTorch run: launch a training group, watch every rank, pause or kill it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(carry=watching.home, plain=False)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", parser_class=_Parser)
    for family in (launch, watching, listing, control, kill, cleaning, serving, reference):
        family.add(verbs)
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.version:
        from ddptop.agent.version import VERSION

        print(f"ddptop {VERSION}")
        return 0
    if options.verb is None and not on_terminal(options):
        _parser().print_help()
        return 0
    from ddptop.agent.run.rundir import RunDirError
    from ddptop.tui.settings import SettingsError

    if sys.stdout.encoding.lower() != "utf-8":
        from ddptop.tui.drawing import glyphs

        glyphs.let_print()
    try:
        return int(options.carry(options))
    except (RunDirError, SettingsError) as problem:
        return complain(problem, 2)


if __name__ == "__main__":
    main()
