"""Frames are taken of a process whose threads, and whose garbage collection, do what they like."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import pytest
from support.harness import DEADLINE_S, started

from ddptop.agent.rank.inspection import frames

RESTLESS = """
import gc, threading, time
from ddptop.agent.rank.inspection import frames

def flicker():
    while True:
        short = threading.Thread(target=int)
        short.start()
        short.join()

end = threading.Event()
standing = [threading.Thread(target=end.wait, daemon=True) for _ in range(200)]
for each in standing:
    each.start()
threading.Thread(target=flicker, daemon=True).start()
# A collection that begins while frames are taken lets the thread run that begins and ends others.
gc.callbacks.append(lambda *_: time.sleep(0.001))
gc.set_threshold(5)
assert {each.ident for each in standing} <= set(frames.current())
gc.set_threshold(0)
print("done")
"""


def test_a_collection_of_garbage_does_not_stop_the_process_for_ever() -> None:
    """A script with callbacks of the collector, whose threads come and go, is looked at again and again."""
    with started(sys.executable, "-c", RESTLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out, errors = process.communicate(timeout=DEADLINE_S)
    assert (out, errors) == ("done\n", "")


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_the_script_has_it(enabled: bool) -> None:
    """On or off."""
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        found = frames.current()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert found[threading.get_ident()].f_code.co_filename == frames.__file__
    assert os.path.basename(found[threading.get_ident()].f_code.co_filename) == "frames.py"
