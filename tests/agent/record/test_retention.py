"""What runs take on the disk, and which go when it is too much."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from pathlib import Path

from support.fakes.events import SaidEvents

from ddptop.agent.record import retention
from ddptop.agent.run import rundir
from ddptop.agent.run.files.private import Hold
from ddptop.agent.run.rundir import Run, RunDir


def made(name: str, age: int, *, state: str = "finished", size: int = 1 << 20) -> RunDir:
    """Make a run that began so many hours ago."""
    began = time.time_ns() - age * 3600 * 10**9
    directory = rundir.create(
        Run(name, secrets.token_hex(8), "p", (), 1, "gloo", "cpu", began, False, state=state, ended_at_ns=began + 10**9)
    )
    (directory.logs / "rank-0.log").write_bytes(os.urandom(size))
    return directory


def test_sizes_are_what_the_disk_says(own_base: Path) -> None:
    """Against du's own count of blocks: files in all folders, holes not, links not followed."""
    directory = made("a", 1)
    (directory.path / "link").symlink_to("/usr")
    with (directory.path / "hole").open("wb") as file:
        file.truncate(1 << 30)
    du = subprocess.run(["du", "-s", "-B1", directory.path], capture_output=True, text=True, check=True)
    told = int(du.stdout.split()[0])
    # du counts the folder itself.
    assert abs(retention.size_of(directory.path) - told) <= 8192
    assert retention.size_of(own_base / "nowhere") == 0


def test_the_oldest_ended_runs_go_first(own_base: Path) -> None:
    """Live runs stay, however old and large; so does the newest ended one, even if it alone is too large."""
    made("live", 9, state="running", size=3 << 20)
    for age in (8, 7, 6):
        made(f"old-{age}", age)
    (own_base / "foreign").mkdir()
    (own_base / "foreign" / "file").write_bytes(b"x" * (4 << 20))
    said = SaidEvents()
    retention.make_room(5 << 20, said)
    assert sorted(run.name for run in rundir.runs()) == ["live", "old-6"]
    assert len(said.texts) == 2
    retention.make_room(0, said)
    assert sorted(run.name for run in rundir.runs()) == ["live", "old-6"]
    assert (own_base / "foreign" / "file").exists()


def test_what_cannot_be_removed_is_said_once(own_base: Path) -> None:
    """Again only once it has changed; a run that is to be kept is not removed, and what was is returned."""
    held = made("held", 9)
    for age in (8, 7, 6):
        made(f"old-{age}", age)
    hold = Hold.acquire(held.path)
    said = SaidEvents()
    told: set[str] = set()
    spared = RunDir(own_base / "old-8")
    removed = [retention.make_room(3 << 20, said, spared=spared, reported=told) for _ in range(3)]
    assert [list(each) for each in removed] == [["old-7"], [], []]
    assert removed[0]["old-7"] >= 1 << 20
    assert [event.level for event in said.all] == ["warning", "info"]
    assert "run held was not removed" in said.texts[0]
    hold.release()
    assert sorted(run.name for run in rundir.runs()) == ["held", "old-6", "old-8"]
    assert list(retention.make_room(0, spared=spared, reported=told)) == ["held"]
    assert sorted(run.name for run in rundir.runs()) == ["old-6", "old-8"]
    assert told == set()


def test_a_job_started_by_hand_goes_by_the_settings_of_the_newest_launched_run(own_base: Path) -> None:
    """Its own record has the default, by which runs would go that their user wants to keep."""
    by_hand = made("by-hand", 1)
    assert retention.bound_of(by_hand.read()) == by_hand.read().all_bytes
    for name, age, most in (("older", 9, 1 << 40), ("newer", 5, 2 << 40)):
        made(name, age).update(launched=True, all_bytes=most)
    made("newest-by-hand", 0)
    assert retention.bound_of(by_hand.read()) == 2 << 40
    assert retention.bound_of(RunDir(own_base / "older").read()) == 1 << 40
