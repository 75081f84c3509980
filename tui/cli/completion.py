"""Shell completion: the script that a shell loads, and the answer to each press of tab.

argcomplete reads the line and asks our own parsers, so that verbs, options and choices are those of this very version;
runs, programs, paths and modules are looked up when they are asked for.  Nothing here is imported but for that.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import argcomplete
from argcomplete.completers import EnvironCompleter, FilesCompleter, SuppressCompleter
from argcomplete.shell_integration import shellcode

from ddptop.agent.text import plural
from ddptop.tui.cli.parsing import Parser

PROGRAM: Final = "ddptop"

_LIVE_VERBS: Final = frozenset({"pause", "step", "resume", "checkpoint", "stop", "checksum", "kill", "watch"})
_ENDED_VERBS: Final = frozenset({"restart", "clean", "baseline", "gate", "keep", "pack"})

Completer = Callable[..., "Mapping[str, str] | Iterable[str]"]
"""Gets `prefix` and `parsed_args` by name; returns what may stand there, with a description where there is one."""


def script(shell: str) -> str:
    """Return what a shell has to evaluate."""
    # Without the shell's own completion of files, which it would offer for the number of ranks too.
    return shellcode([PROGRAM], use_defaults=False, shell=shell)


def answer(parser_of: Callable[[str | None], argparse.ArgumentParser]) -> None:
    """Write what may stand at the cursor of the line that the shell asks about, and end this process.

    Args:
        parser_of: returns the parser of a verb, or of all verbs.
    """
    line, point = os.environ.get("COMP_LINE", ""), int(os.environ.get("COMP_POINT", "0"))
    *words, _ = line[:point].replace("\t", " ").split(" ")
    parser = parser_of(next(iter(words[1:]), None))
    if "--" in words:
        # What follows is the program's own: a file, as far as is known here.
        after = line[:point].partition(" -- ")[2]
        os.environ.update(COMP_LINE=f"{PROGRAM} {after}", COMP_POINT=str(len(f"{PROGRAM} {after}")))
        parser = argparse.ArgumentParser(prog=PROGRAM, add_help=False)
        parser.add_argument("arguments", nargs="*").completer = FilesCompleter()  # type: ignore[attr-defined]
    _teach(parser)
    # Options once their dash is typed, as git's completion has it: else they would hide runs and programs.
    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=SuppressCompleter())


def _teach(parser: argparse.ArgumentParser) -> None:
    """Give each argument whose values are known only now what looks them up; let no wrong option end the parsing."""
    if isinstance(parser, Parser):
        parser.lenient = True
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                _teach(verb)
        elif action.dest in _COMPLETERS:
            action.completer = _COMPLETERS[action.dest]  # type: ignore[attr-defined]


def _runs(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> dict[str, str]:
    from ddptop.agent.client import runs
    from ddptop.agent.wire.frames import ENDED

    found = {} if parsed_args.verb in _ENDED_VERBS else dict.fromkeys(runs.unprepared(), "not prepared")
    for run in runs.listed():
        try:
            state, record = run.state(), run.record()
        except runs.RunDirError:
            continue
        ended = state in ENDED
        if parsed_args.verb in (_LIVE_VERBS if ended else _ENDED_VERBS):
            continue
        meaning = f"{state}, {record.program}, {plural(record.world, 'rank')}"
        digits = runs.digits_of(run.name)
        if prefix and digits is not None and digits.startswith(prefix):
            # A shell matches beginnings alone.
            found[digits] = f"{run.name}, {meaning}"
        found[run.name] = meaning
    return found


def _baselines(prefix: str, **_: Any) -> dict[str, str]:
    from ddptop.agent.client.keeping import kept

    return {each.name: "a baseline" if each.kind == kept.BASELINE else "a kept run" for each in kept.files()}


def _programs(prefix: str, **_: Any) -> dict[str, str]:
    from ddptop.trainers import CATALOGUE
    from ddptop.tui.launch.programs import paths

    # A shell matches beginnings alone.
    files = {path: "folder" if path.endswith("/") else "script" for path in paths(prefix) if path.startswith(prefix)}
    return files | {program.name: program.technique for program in CATALOGUE.values()}


def _modules(prefix: str, **_: Any) -> list[str]:
    from ddptop.tui.launch.programs import modules

    return modules(prefix)


def _topics(**_: Any) -> dict[str, str]:
    from ddptop.tui.cli.output import pages

    return pages.topics()


def _signals(**_: Any) -> dict[str, str]:
    from ddptop.tui.control import signals

    # Those without a name of their own are many, and nobody looks for one.
    return {signals.name(each).removeprefix("SIG"): signals.describe(each) for each in signals.every() if each < 32}


def _injections(prefix: str, **_: Any) -> list[str]:
    from ddptop.agent.client.start.request import faults_from

    return faults_from(prefix)


_COMPLETERS: Final[Mapping[str, Completer]] = {
    "run": _runs,
    "runs": _runs,
    "other": _runs,
    "against": _baselines,
    "file": FilesCompleter(),
    "gate": FilesCompleter(),
    "junit": FilesCompleter(),
    "program": _programs,
    "module": _modules,
    "topic": _topics,
    "signal": _signals,
    "inject": _injections,
    "environment": EnvironCompleter,
    "screenshot": FilesCompleter(),
}
"""By the name of an argument, in whatever verb."""
