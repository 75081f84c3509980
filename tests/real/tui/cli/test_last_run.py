"""What a launch and `ps` say of the runs that were removed for it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from support.harness import ddptop, until

from ddptop.agent.run import rundir
from ddptop.agent.wire.frames import ENDED


def _has_ended(name: str) -> bool:
    return rundir.find(name).read().state in ENDED


def test_removed_runs_are_said_by_ps_and_by_a_verbose_launch(own_base: Path, tmp_path: Path) -> None:
    """A launch beyond the twenty that are kept removes the oldest without a word, but with -v; ps says how many."""
    for at in range(1, rundir.KEEP_ENDED + 2):
        rundir.create(rundir.Run(f"toy-{at}", f"{at}", "toy", (), 1, "gloo", "cpu", at * 10**9, True, state="finished"))
    script = tmp_path / "nothing.py"
    script.write_text("pass\n")
    told = []
    for more in ((), ("-v",)):
        done = ddptop("launch", "--start", "spawn", "--no-wait", "--world", "1", *more, str(script), cwd=tmp_path)
        until(partial(_has_ended, done.stdout.strip()), "it is over")
        told.append(done.stderr)
    assert "ddptop: removed" not in told[0]
    assert "ddptop: removed 1 finished run, 0 MiB: toy-2" in told[1]
    # With those of these two runs there are 21 again, of which ps keeps 20.
    said = ddptop("ps").stdout.splitlines()[-1]
    assert said.startswith("3 ended runs were removed to make room; the last 20 stay, within `all_mib`")
    assert "make room" not in ddptop("ps", "--json").stdout
