"""Who takes the core of a rank that waits for one: real processes, pinned to a core, and the system's own word."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
from support.harness import WAIT, until

from ddptop.agent import wire
from ddptop.agent.observer.inspection import rivals
from ddptop.agent.observer.inspection.rivals import Rivals
from ddptop.agent.observer.judge.intervals import Reason
from ddptop.agent.run import cores
from ddptop.agent.run.identity import identify
from ddptop.agent.run.rundir import Member

VERDICT = wire.Verdict(1, "no_core", "rank 1 waits for a core", 0, rank=1)
BUSY = "import os; os.sched_setaffinity(0, {%d}); print('on', flush=True)\nwhile True: pass"


def test_the_processes_on_the_ranks_core_are_named_by_their_pids(monkeypatch):
    """Two that are busy on it are told with the core; one that sleeps there is not, nor is the rank itself."""
    # Others of the machine may take the core, too, and more of it.
    monkeypatch.setattr(cores, "_MOST_NAMED", 1_000)
    core = min(os.sched_getaffinity(0))
    sleeps = BUSY.replace("while True: pass", WAIT)
    codes = [BUSY % core] * 3 + [sleeps % core]
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for code in codes]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        rank, *busy, _ = (process.pid for process in started)
        found: list[Reason] = []
        now = [100.0]

        looks = Rivals(lambda: now[0])
        me = identify(rank)
        assert me is not None
        looks.meet(Member(1, 1, 2, me, "host", 0, "", "", None))

        def named() -> bool:
            spent = {pid: psutil.Process(pid).cpu_times().user for pid in busy}
            looks.turn([VERDICT])
            # The clock is moved by what the busy ones have had of the core.
            until(
                lambda: all(psutil.Process(pid).cpu_times().user > before + 0.6 for pid, before in spent.items()),
                "both have run",
            )
            now[0] += rivals._OVER_S
            found[:] = looks.turn([VERDICT]).values()
            # Of one that the others keep from its core for long nothing is counted.
            return all(str(pid) in reason.text for reason in found for pid in busy) and bool(found)

        def named_at_last() -> bool:
            now[0] += rivals._RESTS_S
            return named()

        until(named_at_last, "both are named")
        ((accusation, reason),) = looks.turn([VERDICT]).items()
        assert accusation == ("no_core", 1, None)
        assert f"other processes on core {core} (pids " in reason.text
        assert str(rank) not in reason.text
        assert str(started[-1].pid) not in reason.text
        assert looks.turn([]) == {}
    finally:
        for process in started:
            process.kill()
            process.communicate()
