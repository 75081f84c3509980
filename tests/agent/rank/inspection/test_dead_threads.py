"""The last thread that an exception has ended, by the word of a whole process."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, threading
from ddptop.agent.rank.inspection.frames import DeadThreads

threading.excepthook = lambda died: print("hook", died.exc_type.__name__)
found = DeadThreads()
found.watch()

def run(what, name):
    thread = threading.Thread(target=what, name=name)
    thread.start()
    thread.join()
    print(found.last)

run(lambda: None, "quiet")
run(lambda: {}["x"], "prefetch")
run(lambda: sys.exit(0), "exits")
run(lambda: 1 / 0, "ddptop-agent")
"""


def test_the_last_thread_that_died_is_known_and_the_scripts_own_hook_is_called():
    """One that ends, or exits, has not died; nor is a thread of the agent one of the script's."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    died = "thread prefetch died: KeyError: 'x'"
    assert done.stdout.splitlines() == [
        "",
        "hook KeyError",
        died,
        "hook SystemExit",
        died,
        "hook ZeroDivisionError",
        died,
    ]
