"""What a process waits for after its script, against processes that do wait for it, forks of one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from ddptop.agent.rank.process import leaving
from ddptop.agent.run.script.sources import Sources

SCRIPT = """
import multiprocessing, os, queue, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from ddptop.agent.rank.process import leaving
from ddptop.agent.run.script.sources import Sources

def uploads():
    over.wait()

over = threading.Event()
START
print(leaving.awaited(Sources("", os.getcwd())), flush=True)
over.set()
ENDS
"""


FORKS = """
import json, os, sys
for code in json.loads(sys.argv[1]):
    if not (pid := os.fork()):
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""
CASES = [
    ("", "", ""),
    ("threading.Thread(target=uploads, name='uploader').start()", "", "thread uploader (<string>:8)"),
    ("threading.Thread(target=uploads, daemon=True).start()", "", ""),
    ("threading.Thread(target=uploads, name='ddptop-agent').start()", "", ""),
    ("pool = ThreadPoolExecutor(1); pool.submit(int).result(); time.sleep(0.05)", "", ""),
    (
        "pool = ThreadPoolExecutor(1, 'save'); pool.submit(uploads); time.sleep(0.05)",
        "",
        "thread save_0 (<string>:8)",
    ),
    (
        "many = multiprocessing.Queue(); many.put(bytes(1 << 20)); time.sleep(0.05)",
        "many.get()",
        "a queue that nobody reads",
    ),
    (
        "fork = multiprocessing.get_context('fork')\n"
        "child = fork.Process(target=time.sleep, args=(9,), name='eval'); child.start()",
        "child.kill()",
        "process eval (pid ",
    ),
    (
        "[threading.Thread(target=uploads, name=f't{n}').start() for n in range(5)]",
        "",
        "thread t0 (<string>:8), thread t1 (<string>:8), thread t2 (<string>:8) and 2 more",
    ),
]
"""What a process has begun, what ends it, and for what it waits."""


def test_what_a_process_waits_for_at_its_exit() -> None:
    """Threads that are no daemons with their line, queues that nobody reads, processes; nothing of the agent's own."""
    codes = [SCRIPT.replace("START", start).replace("ENDS", ends) for start, ends, _ in CASES]
    done = subprocess.run(
        [sys.executable, "-c", FORKS, json.dumps(codes)], capture_output=True, text=True, timeout=120, check=True
    )
    for told, (start, _, says) in zip(done.stdout.splitlines(), CASES, strict=True):
        assert told == says or (says.endswith("pid ") and told.startswith(says)), start


def test_a_process_that_stands_in_an_exit_function_is_told_as_long_as_it_does(rank):
    """The rank adds it to the record of its end: what it calls of a library, and its line."""
    done = rank.run(
        "import atexit, threading, time\n"
        "late = threading.Thread(target=time.sleep, args=(4,), daemon=True)\n"
        "def leave_together():\n    late.join()\n"
        "atexit.register(leave_together)\nlate.start()\nraise ValueError('bad lr')\n"
    )
    assert done.returncode == 1
    ended = rank.member.ended
    assert ended is not None
    assert (ended.error, ended.left_at) == ("ValueError: bad lr", "script.py:7 <module>")
    assert ended.awaits == "the join of its exit function leave_together (script.py:4)"


def test_what_has_started_the_runner_is_no_exit_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is stopped leaves by functions of the runner: below these stands `runpy`, not the script."""

    def standing(*stack: tuple[str, str]) -> str:
        frame = None
        for file, function in reversed(stack):
            code = SimpleNamespace(co_filename=file, co_name=function)
            frame = SimpleNamespace(f_code=code, f_lineno=8, f_back=frame)
        monkeypatch.setattr(leaving, "current", lambda: {threading.main_thread().ident: frame})
        return leaving.exit_function(Sources("/home/me/train.py", "/home/me"))

    runner = (leaving._RUNNER, "_leave"), ("<frozen runpy>", "_run_code"), ("<frozen runpy>", "_run_module_as_main")
    assert standing((threading.__file__, "_shutdown"), *runner) == ""
    assert standing(("/home/me/train.py", "leave_together"), *runner) == "its exit function leave_together (train.py:8)"
