"""The names of keys are known without the screens that have them."""

from __future__ import annotations

import subprocess
import sys

from ddptop.tui.app.app import DdptopApp
from ddptop.tui.app.keys import keymap

MOVED = {"run.pause": "p", "kill.do": "f7"}


def test_the_first_screen_names_its_keys_without_the_others() -> None:
    """What its texts name is known while no dialog is imported; any other key is looked up when it is named."""
    code = f"""
import sys
from ddptop.tui.app.app import DdptopApp
from ddptop.tui.app.keys import keymap
names = keymap.Names(DdptopApp, {MOVED})
dialogs = lambda: [name for name in sys.modules if name.startswith("ddptop.tui.screens.dialogs.kill")]
told = [names[each] for each in
    ("run.pause", "view.timeline", "app.help", "rank.logs", "plot.whole", "plot.metric", "ranks.open")]
assert not dialogs()
print(told, names["kill.do"], bool(dialogs()))
"""
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.strip() == "['p', '4', '?', 'g', 'a', 'm', '⏎'] f7 True"


def test_the_names_of_the_first_screen_are_those_of_all() -> None:
    """A key is told alike, whether all of them were looked up before or not."""
    every = {action.id: keymap.shown(action.keys[0]) for _, action in keymap.actions(DdptopApp, MOVED)}
    before, names = keymap.Names(DdptopApp, MOVED), keymap.Names(DdptopApp, MOVED)
    assert dict(names) == every
    assert {each: before[each] for each in every} == every
    assert "no.such" not in names
