"""Makes from the real program what README and the manual show of it: pictures, plain output, keys, options, JSON.

    python tests/readme.py --text    all but the pictures and the plain output; at once; a test fails when it is behind
    python tests/readme.py           these, the plain output and the pictures

The latter launches `resnet` on four ranks, one of them made slow, waits until there is something to show, and
takes its pictures.  Only the marked parts of the files are written.  Needs the extra `test`.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from ddptop.agent.client.frame import Frame
from ddptop.agent.client.host.settings import Settings, as_toml
from ddptop.agent.wire import VERDICT_KINDS
from ddptop.agent.wire.frames import RankFrame, RunFrame
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.app.keys.keymap import help_tables
from ddptop.tui.cli.main import _parser
from ddptop.tui.cli.output import status

ROOT = Path(__file__).resolve().parent.parent
MANUAL = ROOT / "tui" / "cli" / "manual"
PICTURES = ROOT / ".github"
VIEWS = {"panels": "120x40", "table": "120x24", "heatmap": "120x40", "timeline": "120x40"}
"""Views that README shows, each with the size of its picture."""
DDPTOP = (sys.executable, "-m", "ddptop.tui.cli.main")
SLOW = ("--world", "4", "--inject", "rank=2,phase=backward,ms=100%,from=50", "resnet")
"""What the pictures show, and what README has a reader launch; every screen says that the fault was put in."""
PICTURE_STEP = 120
"""A step late enough for curves and early enough for the run to be still going."""


@dataclass(frozen=True)
class Part:
    """What stands in a file between the comments `mark: begin` and `mark: end`."""

    file: Path
    mark: str
    content: Callable[[], str]

    def filled(self) -> str:
        """Return the text of the whole file with this part made anew."""
        text = self.file.read_text(encoding="utf-8")
        pattern = rf"(<!-- {self.mark}: begin -->\n).*?(\n<!-- {self.mark}: end -->)"
        content = self.content()
        filled, count = re.subn(pattern, lambda found: f"{found[1]}{content}{found[2]}", text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{self.file}: the marks of {self.mark!r} stand there {count} times, and must once")
        return filled

    def write(self) -> None:
        """Write it into its file."""
        self.file.write_text(self.filled(), encoding="utf-8")


def keys() -> str:
    """Return a table of the keys for each place, from the bindings."""
    tables = []
    _, everything = help_tables(DdptopApp, {}, (), counts=False)
    for place, rows in groupby(everything, key=lambda row: row[0]):
        lines = [f"### {place[0].upper()}{place[1:]}", "", "| key | |", "|---|---|"]
        tables.append("\n".join(lines + [f"| `{key}` | {what} |" for _, key, what in rows]))
    return "\n\n".join(tables)


def options() -> str:
    """Return a table of the options of `ddptop launch`, from its parser."""
    verbs = next(each for each in _parser()._actions if isinstance(each, argparse._SubParsersAction))
    launch: argparse.ArgumentParser = verbs.choices["launch"]
    formatter = launch._get_formatter()

    def row(action: argparse.Action) -> str:
        metavar = action.metavar or (action.option_strings and formatter._format_args(action, action.dest.upper()))
        name = " ".join([*action.option_strings, str(metavar)] if action.nargs != 0 else action.option_strings)
        meaning = formatter._expand_help(action).replace("*", r"\*")
        return f"| `{name}` | {meaning} |"

    told: list[Any] = [each for each in launch._actions if not isinstance(each, argparse._HelpAction)]
    return "\n".join(["| option | |", "|---|---|", *map(row, told)])


def settings() -> str:
    """Return a settings file with all settings but the keys, each at its default."""
    return "\n".join(["```toml", *as_toml(Settings(), ()), "```"])


def kinds() -> str:
    """Return a table of the kinds of verdicts."""
    rows = [f"| `{name}` | {kind.meaning} |" for name, kind in VERDICT_KINDS.items()]
    return "\n".join(["| kind in JSON | what the line says |", "|---|---|", *rows])


def fields(classes: Sequence[type], names: Iterable[str]) -> str:
    """Return a table of fields of JSON, from the docstrings of the classes that have them."""
    meanings: dict[str, str] = {}
    for each_class in classes:
        (body,) = ast.parse(inspect.getsource(each_class)).body
        assert isinstance(body, ast.ClassDef)
        for each, after in pairwise([*body.body, ast.Pass()]):
            match each, after:
                case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    meanings[name] = _cell(text)
                case ast.FunctionDef(name), _:
                    meanings[name] = _cell(ast.get_docstring(each) or "")
    meanings |= dict.fromkeys(("hosts", "ranks"), "a list: see below")
    return "\n".join(["| field | |", "|---|---|", *(f"| `{name}` | {meanings[name]} |" for name in names)])


def _cell(text: str) -> str:
    """Return a docstring as a cell on the page about JSON, in JSON's words, with links to pages that it names."""
    words = " ".join(text.split()).removesuffix(".")
    for python, json_ in (("None", "null"), ("True", "true"), ("False", "false")):
        words = re.sub(rf"\b{python}\b", json_, words)
    words = re.sub(r"(\w+)\.md(#[\w-]+)?", lambda found: f"[{found[1]}]({found[0]})", words)
    words = words.replace("[json](json.md#", "[below](#")
    return words[0].lower() + words[1:]


def plain() -> str:
    """Return the output of a short run without a terminal."""
    command = [*DDPTOP, "launch", "--world", "2", "--name", "simplenet", "simplenet", "--", "--steps", "600"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True)
    return f"```\n$ ddptop launch --world 2 simplenet -- --steps 600 | cat\n{done.stdout.strip()}\n```"


def slow() -> str:
    """Return the command by which a reader sees on his own machine what the pictures show."""
    return "\n".join(["```sh", " ".join(["ddptop", "launch", *SLOW]), "```"])


TEXT = (
    Part(ROOT / "README.md", "slow", slow),
    Part(MANUAL / "keys.md", "keys", keys),
    Part(MANUAL / "programs.md", "options", options),
    Part(MANUAL / "settings.md", "settings", settings),
    Part(MANUAL / "verdicts.md", "kinds", kinds),
    Part(MANUAL / "json.md", "run", lambda: fields((Frame, RunFrame), status.OF_RUN)),
    Part(MANUAL / "json.md", "rank", lambda: fields((RankFrame,), status.OF_RANK)),
)
"""Parts that are the same wherever they are made, so that a test can compare them."""
PLAIN = Part(MANUAL / "programs.md", "plain", plain)


def reach(run: str, step: int) -> None:
    """Wait until every rank of the run has completed that step, and a rank is named."""
    watch = subprocess.Popen([*DDPTOP, "watch", run, "--json", "--interval", "0.5"], stdout=subprocess.PIPE, text=True)
    with watch:
        assert watch.stdout is not None
        for line in watch.stdout:
            told = json.loads(line)
            if (told["step"] or 0) >= step and (told["verdict"] or {}).get("rank") is not None:
                break
        watch.terminate()


def take_pictures(run: str) -> None:
    """Write a picture of each view, of the same run one after the other."""
    for view, size in VIEWS.items():
        file = str(PICTURES / f"{view}.svg")
        subprocess.run([*DDPTOP, "attach", run, "--view", view, "--screenshot", file, "--size", size], check=True)


def show_a_run() -> None:
    """Launch what the pictures show, take them, and end it."""
    name = subprocess.run(
        [*DDPTOP, "launch", "--detach", *SLOW],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    try:
        reach(name, PICTURE_STEP)
        take_pictures(name)
    finally:
        subprocess.run([*DDPTOP, "kill", name], check=False)


def main() -> None:
    """Rewrite the marked parts, and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", action="store_true", help="neither the pictures nor the plain output")
    only_text = parser.parse_args().text
    for part in TEXT:
        part.write()
    if not only_text:
        PLAIN.write()
        show_a_run()


if __name__ == "__main__":
    main()
