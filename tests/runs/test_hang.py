"""A run of two ranks, one of which stays away from a collective: told by the observer, and kept when all is killed."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from support.harness import carriers, ddptop, status, until, write_script

from ddptop.agent.record.recording import read_inspections, read_verdicts
from ddptop.agent.run.rundir import RunDir
from ddptop.agent.wire import Verdict

TRAINS = '''
"""Trains on all ranks; rank 1 sleeps at a step as long as there is a file `sleep`."""
import pathlib, time, light, torch, torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(8, 1)
optimizer = light.Descent(model)
while True:
    while dist.get_rank() == 1 and pathlib.Path("sleep").exists():
        time.sleep(0.2)
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.05)
'''


def test_a_hang_is_told_ends_with_the_next_step_and_is_kept_after_kill_9(runtime: Path, tmp_path: Path) -> None:
    """Rank, class and line; its interval in `events`; verdict and stacks in the record when nobody could write more."""
    write_script(tmp_path, TRAINS)
    line = 1 + TRAINS.splitlines().index("        time.sleep(0.2)")
    assert ddptop("launch", "--world", "2", "--name", "still", "--detach", "train.py", cwd=tmp_path).returncode == 0
    directory = RunDir(runtime / "still")

    def hangs() -> list[Verdict]:
        return [verdict for verdict in _recorded(directory) if verdict.until_at_ns is None]

    try:
        until(lambda: (status("still")["step"] or 0) > 20, "some steps")
        (tmp_path / "sleep").touch()
        until(hangs, "the first hang")
        told = status("still")["verdicts"][0]
        assert (told["kind"], told["rank"]) == ("hang", 1)
        (tmp_path / "sleep").unlink()
        until(lambda: not hangs(), "its end")
        events = ddptop("events", "still").stdout
        assert "rank 1 hangs: it sleeps and never entered all_reduce 36 B, in which rank 0 waits" in events
        (tmp_path / "sleep").touch()
        until(lambda: len(_recorded(directory)) == 2, "the record of the second hang")
        until(lambda: read_inspections(directory.database), "the record of its stacks")
        # The observer, the launcher and the ranks at once.
        observer = directory.read().observer
        assert observer is not None
        for pid in [observer.pid, *carriers(directory.read().run_id)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    finally:
        ddptop("kill", "still")
    first, second = _recorded(directory)
    assert first.until_at_ns is not None
    for verdict in (first, second):
        assert verdict.hang is not None
        assert (verdict.hang.kind, verdict.hang.ranks, verdict.hang.sure) == ("not_entered", (1,), True)
        assert verdict.hang.where == f"train.py:{line} <module>"
    waits, sleeps = read_inspections(directory.database)
    assert [call.op for call in waits.open] == ["all_reduce"]
    assert sleeps.threads[0].frames[0].line == line
    assert sleeps.open == ()


def _recorded(directory: RunDir) -> list[Verdict]:
    return [verdict for verdict in read_verdicts(directory.database) if verdict.kind == "hang"]
