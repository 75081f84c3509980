"""`help`, `config` and `completion`: the manual, the settings with their file, and the script for a shell."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from ddptop.tui.cli.parsing import complain
from ddptop.tui.cli.verbs.options import Verbs, add_verb


def add(verbs: Verbs) -> None:
    manual = add_verb(
        verbs, "help", "read the manual; without a topic, list its pages",
        "Shows a page of the manual, or the help of a verb; without a topic, lists the pages.",
        """
        ddptop help
        ddptop help keys
        ddptop help launch  # as `ddptop launch --help`
        """,
        {0: "shown", 2: "no such page or verb"},
    )  # fmt: skip
    manual.add_argument("topic", metavar="TOPIC", nargs="?", help="a page, as `ddptop help` lists them, or a verb")
    manual.set_defaults(carry=_help)

    config = add_verb(
        verbs, "config", "show where the settings file is, and every setting with its meaning",
        "Prints the path of the settings file, and all settings as that file would have them, each with its meaning.",
        "ddptop config",
        {0: "printed", 2: "printed, but the settings file has an error"},
    )  # fmt: skip
    config.set_defaults(carry=_config)
    _add_completion(verbs)


def _help(options: argparse.Namespace) -> int:
    from ddptop.tui.cli.main import print_help
    from ddptop.tui.cli.output import pages
    from ddptop.tui.cli.parsing import FAMILIES

    known = pages.topics()
    if options.topic is None:
        for topic, title in known.items():
            print(f"{topic:<15}{title}")
        print("\nread one: ddptop help TOPIC      options of a verb: ddptop VERB --help")
        return 0
    if options.topic not in known and options.topic in FAMILIES:
        print_help(options.topic)
        return 0
    if options.topic not in known:
        import difflib

        verbs = difflib.get_close_matches(options.topic.lower(), FAMILIES, n=1, cutoff=0.8)
        meant = next(iter(verbs), None) or pages.nearest(options.topic)
        hint = f" (did you mean {meant!r}?)" if meant else ""
        return complain(f"help: no page or verb {options.topic!r}{hint}; `ddptop help` lists the pages", 2)
    pages.show(options.topic)
    return 0


def _config(_: argparse.Namespace) -> int:
    import msgspec

    from ddptop.agent.client.host import settings
    from ddptop.agent.text import clean
    from ddptop.tui.app.app import DdptopApp
    from ddptop.tui.app.keys import keymap

    file = settings.path()
    # The list is the help for a file with an error.
    found, problem = settings.load_or_default()
    if problem is None:
        try:
            keymap.check(DdptopApp, found.keymap)
        except settings.SettingsError as refused:
            found, problem = msgspec.structs.replace(found, keys={}), refused
    rows = {
        action.id: (action.id, action.written, action.written_default, action.meaning)
        for _, action in keymap.actions(DdptopApp, found.keymap)
    }
    print(f"# Settings of ddptop, in {clean(str(file))}")
    absent = f"which is not there: all is as below; mkdir -p {clean(str(file.parent))}"
    there = "which is there" if problem is None else "which has an error: below is what can be set"
    print(f"# ({there if file.exists() else absent})")
    print("# A commented line shows the default.\n")
    for line in settings.as_toml(found, rows.values()):
        print(clean(line))
    if problem is None:
        return 0
    sys.stdout.flush()
    return complain(problem, 2)


LINES: Final = {
    "bash": ("~/.bashrc", 'eval "$(ddptop completion bash)"'),
    "zsh": ("~/.zshrc", 'eval "$(ddptop completion zsh)"'),
    "fish": ("config.fish", "ddptop completion fish | source"),
}
"""By shell, its startup file and the line that belongs there."""

_EXAMPLES: Final = "\n".join(
    f"{f'ddptop completion {shell}':<22}  # in {file}: {line}" for shell, (file, line) in LINES.items()
)


def _add_completion(verbs: Verbs) -> None:
    completion = add_verb(
        verbs, "completion", "print the script that completes ddptop in a shell",
        "Prints the script with which tab completes verbs, options, runs, programs, scripts and modules. "
        "A line in the startup file of the shell reads it; in zsh after compinit.",
        _EXAMPLES,
        {0: "printed", 2: "no such shell"},
    )  # fmt: skip
    completion.add_argument("shell", metavar="SHELL", choices=tuple(LINES), help=f"one of {', '.join(LINES)}")
    completion.set_defaults(carry=_print)


def _print(options: argparse.Namespace) -> int:
    from ddptop.tui.cli import completion

    print(completion.script(options.shell))
    return 0
