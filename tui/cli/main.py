"""The command line. Imports only what the verb at hand needs: `--help` loads no ZeroMQ, no Textual, no torch."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

from ddptop.agent.client.host.program import VERSION, quicken
from ddptop.agent.text import Complaint
from ddptop.tui.cli.parsing import FAMILIES, Parser, complain

EPILOG = """\
Alone, on a terminal, it lists all runs: look at one, launch another.

first steps:
  ddptop launch --world 4 resnet          train a ResNet on four ranks and watch it
  ddptop launch train.py -- --lr 0.1      any script, unmodified; its own options after --
  ddptop attach                           come back to it from any terminal
  ddptop kill RUN                         end it, and everything that belongs to it
  ddptop help                             the manual: keys, numbers, verdicts, control, ...

exit codes: 0 done, 1 refused or failed, 2 wrong options or no such run;
launch, attach and watch: that of the run.  More: ddptop VERB --help
"""


def main() -> None:
    """Run `ddptop` and exit with its code: 0 done, 1 refused or failed, 2 bad input."""
    quicken()
    if "_ARGCOMPLETE" in os.environ:
        # The shell asks what may stand at the cursor.
        from ddptop.tui.cli import completion

        completion.answer(_parser)
    if "DDPTOP_FROM" in os.environ:
        from ddptop.tui.remote import errand

        errand.begin()
    arguments, program_arguments = _split(sys.argv[1:])
    if arguments == ["--version"]:
        print(f"ddptop {VERSION}")
        return
    parser = _parser(next(iter(arguments), None))
    options = parser.parse_args(arguments)
    if program_arguments and options.verb != "launch":
        parser.error(f"nothing can follow -- for {options.verb}")
    options.arguments = tuple(program_arguments)
    options.line = arguments
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


def _parser(verb: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of a verb; of all of them where it is none."""
    parser = Parser(
        prog="ddptop",
        description="htop for a distributed PyTorch run: launch a training group, watch every rank, pause or kill it.",
        epilog=EPILOG,
    )
    parser.verbs = FAMILIES
    parser.set_defaults(carry=_home, plain=False)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", parser_class=Parser, prog="ddptop")
    families = dict.fromkeys(FAMILIES.values()) if verb not in FAMILIES else (FAMILIES[verb],)
    for family in families:
        import_module(f"ddptop.tui.cli.verbs.{family}").add(verbs)
    return parser


def print_help(verb: str) -> None:
    """Print what `--help` of a verb prints."""
    parser = _parser(verb)
    verbs = next(each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    verbs.choices[verb].print_help()


def _home(options: argparse.Namespace) -> int:
    from ddptop.tui.cli.verbs import watching

    return watching.home(options)


def _carried_out(options: argparse.Namespace) -> int:
    if not any(":" in each for each in options.line):
        return int(options.carry(options))
    from ddptop.tui.cli import elsewhere

    code = elsewhere.carried_out(options, lambda line: _parser(options.verb).parse_args(line))
    return int(options.carry(options)) if code is None else code


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
        return _carried_out(options)
    except Complaint as problem:
        return complain(problem, getattr(problem, "code", 2))


if __name__ == "__main__":
    main()
