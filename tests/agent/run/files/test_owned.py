"""What ddptop removes, renames or writes in a run directory is its own: nothing of the user's is lost by it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from support.fakes.events import SaidEvents

from ddptop.agent import wire
from ddptop.agent.end import freezer
from ddptop.agent.launcher import detached
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.inspection.profiling import Profiling
from ddptop.agent.rank.process import crashes
from ddptop.agent.rank.process.account import Account
from ddptop.agent.rank.records.stamps import Stamps
from ddptop.agent.record import diagnoses, recording
from ddptop.agent.record.logs import Logs
from ddptop.agent.record.ring import Ring
from ddptop.agent.run import ends, hosts, rundir
from ddptop.agent.run.files import marks, private
from ddptop.agent.run.files.database import DAMAGE
from ddptop.agent.run.files.presence import Presence
from ddptop.agent.run.files.private import Claim
from ddptop.agent.run.rundir import Member, Process, Run, RunDir, RunDirError
from ddptop.agent.wire.vocabulary.refusals import Refused

RUN: Final = Run("run", "id", "x.py", (), 1, None, None, 1, True, state="finished")
MEMBER: Final = Member(0, 0, 1, Process(1, 1.0), "h", 0, "", "", None)


def append(log: Path) -> None:
    with open(marks.append(log), "ab") as file:
        file.write(b"a line\n")


def crash(run: RunDir) -> None:
    disabled: Any = SimpleNamespace(is_enabled=lambda: False, enable=os.close, disable=lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crashes, "faulthandler", disabled)
        patch.setattr(crashes, "_originals", {})
        crashes.begin(run.rank_crash(0))


def claim(run: RunDir) -> None:
    if (found := Claim.acquire(marks.owned_folder(run.path))) is not None:
        found.release()


def record(run: RunDir) -> None:
    # As an observer begins.
    ring = Ring(marks.owned_folder(run.path) / "run.db", 1)
    with contextlib.suppress(*DAMAGE):
        ring.write([(recording.INSERT_EVENT, (1, b"x"))], 1 << 20)
        ring.close()


def touch(run: RunDir) -> None:
    at = 0.0
    presence = Presence(run, clock=lambda: at)
    at = 1e9
    presence.tick()
    presence.end()


def profile(run: RunDir) -> None:
    Profiling(0, run.diagnoses("profile"), Stamps(), Faults()).ask(wire.Profile(0, "t", 1, 5, 1), 0)


def bound(run: RunDir) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnoses, "MOST_PROFILES", 0)
        diagnoses.bound_profiles(run)


def account(run: RunDir) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private, "replace", lambda path, content: private.write(Path(os.devnull, "full"), content))
        Account(run, MEMBER, Faults()).end(1, "an error", None, None, None)


ACTS: Final[dict[str, tuple[str, Callable[[RunDir], object]]]] = {
    "the record of the run": ("run.json", lambda run: run.write(RUN)),
    "the record of a rank": ("ranks/0.json", lambda run: run.write_member(MEMBER)),
    "a record that is removed": ("ranks/0.json", lambda run: run.remove_member(0)),
    "the end of a rank on a full disk": ("ranks/0.json", account),
    "a socket": ("0.pub", lambda run: run.remove_sockets()),
    "the other hosts": ("hosts/hosts.json", lambda run: hosts.write_hosts(run.path, ())),
    "their ranks": ("hosts/far.json", lambda run: hosts.write_far(run.path, hosts.FarRanks())),
    "ends": ("ends.json", lambda run: ends.write(run.path, 0, ())),
    "a freeze that is over": ("frozen.json", freezer.thaw),
    "the claim": ("lock", claim),
    "the log of a rank": ("logs/rank-0.log", lambda run: append(run.rank_log(0))),
    "the log of the observer": ("logs/observer.log", detached.is_due),
    "the stacks of a crash": ("logs/rank-0.crash", crash),
    "a log that is too large": ("logs/rank-0.log", lambda run: Logs(run.logs, SaidEvents()).limit_to(64 << 10)),
    "the recording": ("run.db", record),
    "the time of a log": ("logs/rank-0.log", touch),
    "a profile": ("profiles/0001", lambda run: diagnoses.new(run, "profile")),
    "a census": ("memory/0001", lambda run: diagnoses.new(run, "memory")),
    "a probe": ("probes/0001", lambda run: diagnoses.new(run, "probe")),
    "a profile that was refused": ("profiles/0001", lambda run: diagnoses.remove(run.diagnoses("profile") / "0001")),
    "a profile too many": ("profiles/0001", bound),
    "the trace of a rank": ("profiles/0001", profile),
    "the run itself": ("", rundir.remove),
    "the run among others": ("", lambda run: rundir.prune()),
    "the name of the run": ("", lambda run: rundir.set_aside(run, "aside")),
}
"""By what is at stake: its place in the run directory, and what removes, renames or writes it."""
PREPARED: Final = ("a link", "a link as parent", "no mark")


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
    monkeypatch.setenv(rundir.BASE_VARIABLE, str(path / "base"))
    monkeypatch.setattr(rundir, "KEEP_ENDED", 0)
    yield path
    shutil.rmtree(path)


def fill(place: Path) -> None:
    """Have a person's own things there, under the names that ddptop gives to its own."""
    place.mkdir(parents=True, exist_ok=True)
    for name in ("0.json", "run.json", "hosts.json", "far.json", "ends.json", "frozen.json", "lock", "0.pub", "notes"):
        (place / name).write_text("mine")
    for name in ("rank-0.log", "rank-0.crash", "observer.log", "trace.json.gz"):
        (place / name).write_text("mine\n" * 100_000)
    said = '{"run": "r", "steps": [1, 3], "ranks": [0], "culprit": 0, "peer": null, "at": 1.0, "sentences": [], '
    (place / "summary.json").write_text(said + '"operators": [], "left_out": 0}')
    with contextlib.closing(sqlite3.connect(place / "run.db")) as connection, connection:
        connection.execute("CREATE TABLE steps(mine TEXT)")
    for folder in ("0001", "0002", "2024"):
        if not place.name.isdigit():
            fill(place / folder)


def seen(place: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(each.relative_to(place)): (each.read_bytes(), each.lstat().st_mtime_ns)
        for each in place.rglob("*")
        if each.is_file()
    }


@pytest.mark.parametrize("how", PREPARED)
@pytest.mark.parametrize("what", ACTS)
def test_nothing_of_the_user_is_lost(base: Path, what: str, how: str) -> None:
    """A link, a link as parent, or a folder without our mark is in the place of what ddptop removes or writes."""
    place, act = ACTS[what]
    run = rundir.create(RUN)
    mine, spot = base / "mine", run.path / place
    is_diagnosis = spot.name == "0001"
    if how == "no mark":
        mine = spot if is_diagnosis else run.path
        if not is_diagnosis:
            # What is below the run directory has the mark of that.
            (run.path / marks.NAME).unlink()
        fill(spot if is_diagnosis or spot == run.path else spot.parent)
    else:
        fill(mine)
        is_parent = how == "a link as parent" and spot != run.path
        replaced, target = (spot.parent, mine) if is_parent else (spot, mine / spot.name if place else mine)
        if replaced.is_dir():
            shutil.rmtree(replaced)
        replaced.unlink(missing_ok=True)
        replaced.parent.mkdir(exist_ok=True)
        replaced.symlink_to(target)
    before = seen(mine)
    with contextlib.suppress(OSError, Refused, RunDirError):
        act(run)
    assert seen(mine) == before
