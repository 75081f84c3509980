"""The options that several verbs share: the run that is meant, and the way it is shown."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ddptop.tui.cli.parsing import as_called, complain

if TYPE_CHECKING:
    from ddptop.agent.client.host.settings import Settings
    from ddptop.agent.client.runs import Run
    from ddptop.tui.cli.parsing import Parser

Verbs = Any
"""The type that `ArgumentParser.add_subparsers` returns, which argparse does not name."""

DONE: Final = {0: "done", 1: "refused or failed", 2: "wrong options, or no such run"}
"""The exit codes of a verb that acts on a run."""
PRINTED: Final = {0: "printed", 2: "wrong options, or no such run"}
"""The exit codes of a verb that only prints."""
AWAITED: Final = {**DONE, 130: "Ctrl-C"}
"""The exit codes of a verb that waits for the ranks."""
RUNS_OWN: Final[Mapping[str, str]] = {
    "0": "the run has finished or stopped, or you left the dashboard",
    "1": "the run failed or is lost, with no exit code of its own",
    "2": "wrong options, or no such run",
    "N": "the run's own, where it failed (143: it was killed)",
    "130": "Ctrl-C",
}
"""The exit codes of a verb that shows a run until its end."""
LAUNCHED: Final = {
    **RUNS_OWN,
    "0": "finished, stopped, or you left the dashboard; --detach: it makes steps",
    "1": "failed or lost, with no exit code of its own; --detach: failed",
}
"""The exit codes of a verb that starts a run."""

RUN_HELP: Final = (
    "name of the run, its beginning, or its last 4 digits; the pid of any of its processes, also where nobody "
    "prepared it; HOST:RUN for one of another machine, over ssh"
)


def add_verb(verbs: Verbs, name: str, title: str, text: str, examples: str, codes: Mapping[Any, str] = DONE) -> Parser:
    """Add a verb and its help.

    Args:
        verbs: the verbs.
        name: its name.
        title: its line in the list of all verbs.
        text: what it does, in a sentence or two.
        examples: command lines, one a line, each with a comment where it needs one.
        codes: what each exit code means.
    """
    lines = [f"  {line.strip()}" for line in examples.strip().splitlines()]
    head = "example" if len(lines) == 1 else "examples"
    width = max(len(str(code)) for code in codes)
    meanings = [f"  {code!s:<{width}}  {meaning}" for code, meaning in codes.items()]
    epilog = "\n".join([f"{head}:", *lines, "", "exit codes:", *meanings])
    found: Parser = verbs.add_parser(name, help=title, description=text, epilog=epilog)
    return found


def add_run(verb: argparse.ArgumentParser, *, last: bool = False) -> None:
    """Let the verb take the name of a run; without one it takes the only live run, or the `last` where none is."""
    left_out = "without it the only live run, or the last one" if last else "may be left out when only one is alive"
    verb.add_argument("run", metavar="RUN", nargs="?", help=f"{RUN_HELP}; {left_out}")
    add_remote(verb)


def add_remote(verb: argparse.ArgumentParser) -> None:
    """Add the option with the command of ddptop on another machine."""
    verb.add_argument(
        "--remote-command",
        metavar="COMMAND",
        help="with HOST:RUN, what starts ddptop there ($DDPTOP_REMOTE, or as `ddptop config` has it)",
    )


def add_view(verb: argparse.ArgumentParser) -> None:
    """Add the options that say how a run is shown."""
    verb.add_argument(
        "--plain", action="store_true", help="lines of text instead of the dashboard (the default without a terminal)"
    )
    add_interval(verb)
    verb.add_argument(
        "--ascii", action="store_true", help="draw with ASCII only (the default where the locale is not UTF-8)"
    )


def add_interval(verb: argparse.ArgumentParser) -> None:
    """Add the option with the seconds between two lines."""
    verb.add_argument("--interval", type=seconds, metavar="S", help="seconds between lines (as `ddptop config` has it)")


def typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a type of argparse; its error quotes the text, and says what to give as the ValueError of `read` does."""

    def checked(text: str) -> Any:
        try:
            return read(text)
        except ValueError as problem:
            raise argparse.ArgumentTypeError(f"{text!r}: give {problem}") from problem

    return checked


def _seconds(text: str) -> float:
    # Here, because each verb imports this module, and few are given a time.
    from ddptop.tui.launch.options import seconds

    return seconds(text)


seconds: Final = typed(_seconds)


def configured(options: argparse.Namespace) -> Settings:
    """Return the user's settings, changed by the options of this call.

    Raises:
        SettingsError: they cannot be used.
    """
    import msgspec

    from ddptop.agent.client.host import settings

    found = settings.load()
    if found.keys:
        from ddptop.tui.app.app import DdptopApp
        from ddptop.tui.app.keys.keymap import check

        check(DdptopApp, found.keymap)
    changed = msgspec.structs.replace
    if getattr(options, "ascii", False):
        found = changed(found, look=changed(found.look, glyphs="ascii"))
    if getattr(options, "view", None) is not None:
        found = changed(found, look=changed(found.look, view=options.view))
    if getattr(options, "interval", None) is not None:
        found = changed(found, plain=changed(found.plain, interval_s=options.interval))
    return found


def on_terminal(options: argparse.Namespace) -> bool:
    """Say whether there is a terminal for the dashboard, and it is wanted."""
    return not options.plain and all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def show(options: argparse.Namespace, run: Run, settings: Settings, *, listed: bool = False) -> int:
    """Show a run until the user leaves it, on the dashboard (all runs `listed` if so asked) or in lines of text."""
    from ddptop.tui.cli import view

    if settings.look.glyphs == "ascii":
        from ddptop.tui.drawing import glyphs

        glyphs.let_print(ascii_only=True)
    if not on_terminal(options):
        return view.follow_plainly(run, settings, launched_here=options.verb in ("launch", "restart"))
    return view.show_dashboard(run, settings, listed=listed)


class LiveLine:
    """One line on a terminal that says what a verb waits for; it is gone when the verb ends."""

    def __init__(self, *advice: str) -> None:
        self._advice = advice
        self._shown = ""

    def show(self, line: str) -> None:
        """Show this line now, with as many whole pieces of advice as fit; an empty one clears it."""
        if line == self._shown or not sys.stderr.isatty():
            return
        if not line:
            self.clear()
            return
        self._shown = line
        width = os.get_terminal_size(sys.stderr.fileno()).columns - 1
        text = line[:width]
        for piece in self._advice:
            if len(text) + len(piece) + 3 > width:
                break
            text = f"{text} · {piece}"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away, so that the outcome stands in its place."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = ""


def show_launched(options: argparse.Namespace, run: Run, settings: Settings) -> int:
    """Show a run that was just started, or print its name alone and return: at once, or once its ranks make steps."""
    from ddptop.tui.cli import view

    name = run.name
    if not is_detached(options):
        return show(options, run, settings)
    if not options.no_wait:
        progress = LiveLine("ctrl+c leaves it")
        try:
            failure = view.await_start(run, settings, lambda what: progress.show(f"{name} starts: {what}"))
        except KeyboardInterrupt:
            progress.clear()
            print(*map(as_called, view.goes_on(name)), sep="\n", file=sys.stderr)
            return 130
        progress.clear()
        if failure is not None:
            return complain(f"run {name}: {failure}; `ddptop logs {name}` shows more", 1)
    print(name)
    return 0


def is_detached(options: argparse.Namespace) -> bool:
    """Say whether a run that is started is not to be shown."""
    return bool(options.detach or options.no_wait)


def _named(name: str, *, looks: bool) -> Run:
    """Return the run of that name; where it may be several, the only live one, if it is only looked at.

    Raises:
        RunDirError: there is none, or more than one.
    """
    from ddptop.agent.client import runs

    names = runs.meant(name)
    if not names and name.isascii() and name.isdecimal():
        return runs.of_process(int(name))
    if len(names) < 2:
        return runs.find(name)
    live = [run for run in runs.live() if run.name in names]
    if looks and len(live) == 1:
        print(f"ddptop: {name!r} could be {len(names)} runs; this is the live one, {live[0].name}", file=sys.stderr)
        return live[0]
    alive = {run.name for run in live}
    listed = ", ".join(f"{each} (alive)" if each in alive else each for each in names)
    raise runs.RunDirError(f"run {name!r}: could be {listed}; give more of the name")


def _packed(name: str) -> Run | None:
    """Return the run of a packed file, unpacked until this program ends; None where a run of this machine is meant."""
    import atexit
    import contextlib

    from ddptop.agent.client import runs

    if runs.meant(name) or (name.isascii() and name.isdecimal()):
        return None
    # It needs NumPy.
    from ddptop.agent.client.keeping import kept

    if (path := kept.found(name)) is None:
        return None
    unpacked = contextlib.ExitStack()
    atexit.register(unpacked.close)
    return unpacked.enter_context(kept.opened(path))


def chosen(name: str | None, *, looks: bool = False, last: bool = False) -> Run:
    """Return the run that is meant.

    Args:
        name: its name or a part of it.
        looks: whether it is only looked at, so that of several that are meant the only live one may be taken.
        last: whether, without a name and a live run, the newest one is taken, which is then named on stderr.

    Raises:
        RunDirError: it is not clear, or there is none.
    """
    from ddptop.agent.client import runs

    if name is not None:
        if (looks or last) and (packed := _packed(name)) is not None:
            return packed
        return _named(name, looks=looks or last)
    live = runs.live()
    if len(live) == 1:
        return live[0]
    if len(own := runs.of_this_job(live)) == 1:
        return own[0]
    if live:
        names = ", ".join(run.name for run in live)
        raise runs.RunDirError(f"{len(live)} runs are alive: name one of {names}")
    if len(groups := runs.unprepared()) == 1:
        return runs.find(groups[0])
    newest = next(iter(runs.listed()), None)
    if newest is None:
        raise runs.RunDirError("no run is alive; `ddptop launch --world 4 resnet` starts one")
    if last:
        print(f"ddptop: no live run; this is the last one, {newest.name}", file=sys.stderr)
        return newest
    raise runs.RunDirError(f"no run is alive; the last: `ddptop attach {newest.name}`; `ddptop ps` lists all")


def print_json(value: object) -> None:
    """Print a value as JSON, indented."""
    from ddptop.tui.cli.output import status

    print(status.encoded(value, indent=2))
