"""`config`: where the settings are, and what can be set."""

from __future__ import annotations

import argparse

from ddptop.tui.cli.verbs.options import Verbs


def add(verbs: Verbs) -> None:
    """Add the verb."""
    verb = verbs.add_parser("config", help="show where the settings are, and all of them with what they mean")
    verb.set_defaults(carry=_config)


def _config(_: argparse.Namespace) -> int:
    from ddptop.agent.wire.text import clean
    from ddptop.tui import settings
    from ddptop.tui.app import keymap
    from ddptop.tui.app.app import DdptopApp

    file = settings.path()
    found = settings.load()
    keymap.check(DdptopApp, found.keymap)
    rows = {
        action.id: (action.id, action.written, action.written_default, action.meaning)
        for _, action in keymap.actions(DdptopApp, found.keymap)
    }
    print(f"# Settings of ddptop, in {clean(str(file))}")
    absent = f"which is not there: all is as below; mkdir -p {clean(str(file.parent))}"
    print(f"# ({'which is there' if file.exists() else absent})")
    print("# What is commented out is as it is without the line.\n")
    for line in settings.as_toml(found, rows.values()):
        print(clean(line))
    return 0
