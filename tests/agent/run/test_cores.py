"""The CPU time of real processes, beside what each of them counts of itself."""

from __future__ import annotations

import subprocess
import sys
import time

from support.harness import started

from ddptop.agent.run.cores import Usage

WORKS = """
import os, sys, time

def work():
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass

parent = os.getpid()
child = os.fork()
if child:
    print("there", flush=True)
    os.waitpid(child, 0)
for line in sys.stdin:
    work()
    print("done", flush=True)
"""


def test_the_work_of_a_child_is_that_of_its_process() -> None:
    """As that of a data worker: in percent of a core since the look before, from the second look on."""
    with started(sys.executable, "-c", WORKS, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        began, usage = time.monotonic(), Usage(process.pid)
        assert usage.children == 1
        process.stdin.write("work\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        percent, passed = usage.percent(), time.monotonic() - began
        process.stdin.close()
    assert abs(percent / 100 * passed - 0.3) < 0.1
