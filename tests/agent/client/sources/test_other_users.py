"""`ps --all` as root: whatever another user has prepared costs a line, and is never opened with root's rights."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.harness import DEADLINE_S, WAITING, ddptop

from ddptop.agent.client.frame import Frame
from ddptop.agent.client.sources import other_users
from ddptop.agent.run import rundir
from ddptop.agent.run.files import marks
from ddptop.agent.run.rundir import Member, Process, Run
from ddptop.agent.wire.frames import RunFrame

THEM = 12345
"""A user that this system does not know."""
EVIL = "\x1b[2J\x1b]0;owned\x07\u202eresnet\x9b31m"
GONE = Process(2**22 + 1, 1.0)

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of other users, and needs this care")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the test's own that stands for /tmp."""
    path = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
    path.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.delenv(rundir.BASE_VARIABLE, raising=False)
    yield path
    shutil.rmtree(path)


def base_of(place: Path, uid: int = THEM) -> Path:
    base = place / f"ddptop-{uid}"
    base.mkdir(mode=0o700, exist_ok=True)
    return base


def add(place: Path, name: str, uid: int = THEM, **fields: Any) -> Path:
    """Write a run of that user's, with fields of its record as given, whatever they are."""
    folder = base_of(place, uid) / name
    for each in (folder, folder / "ranks", folder / "logs"):
        each.mkdir(mode=0o700)
    run = Run(name, name, "train.py", (), 2, None, None, 10**18, True, state="running", torchrun=GONE)
    (folder / "run.json").write_text(json.dumps(msgspec.to_builtins(run) | fields))
    marks.write(folder, marks.Mark(marks.RUN, run_id=name))
    return folder


def give(place: Path, uid: int = THEM) -> None:
    """Make that user the owner of all that was prepared."""
    base = base_of(place, uid)
    for path in (base, *base.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)


def listed(place: Path) -> tuple[dict[str, dict[str, Any]], str]:
    """Return what `ps --all --json` tells of others by run, and what it complains of."""
    give(place)
    done = ddptop("ps", "--all", "--json")
    assert done.returncode == 0, done.stderr
    assert {each for each in done.stdout if not each.isprintable()} <= {"\n"}
    return {row["run"]: row for row in json.loads(done.stdout) if row["user"]}, done.stderr


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _secret(path: Path) -> None:
    path.symlink_to("/etc/shadow")


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _folder(path: Path) -> None:
    path.mkdir()


KINDS: tuple[Callable[[Path], None], ...] = (_fifo, _zero, _secret, _huge, _socket, _folder)
PLACES = (
    ".ddptop", "run.json", "frozen.json", "ranks/0.json", "logs/torchrun.log", "logs/observer.log", "run.db",
    "run.db-wal", "decisions", "lock", "0.pub", "0.cmd", "observer.pub", "observer.cmd", "ranks", "logs",
)  # fmt: skip


def test_anything_in_the_place_of_any_file_is_survived(place: Path) -> None:
    """A pipe, an endless device, a link, a huge file, a socket, a folder in each place: one list, in time."""
    add(place, "honest")
    for user, kind in enumerate(KINDS, THEM + 1):
        for where in PLACES:
            folder = add(place, f"{kind.__name__[1:]}-{where.replace('/', '-').strip('.')}", user)
            path = folder / where
            if path.is_dir():
                path.rmdir()
            path.unlink(missing_ok=True)
            # So that somebody wants to hear it.
            if where.startswith(("0.", "observer.")):
                me = rundir.identify(os.getpid())
                assert me is not None
                member = Member(0, 0, 2, me, "h", 0, "", "", None)
                (folder / "ranks" / "0.json").write_bytes(msgspec.json.encode(member))
            kind(path)
        give(place, user)
    found, complaints = listed(place)
    assert complaints == ""
    assert found["honest"]["state"] == "lost"
    # Without a mark or a record there is no run; all others are listed, folders in place of folders too.
    missing = {f"{kind.__name__[1:]}-{where}" for kind in KINDS for where in ("ddptop", "run.json")}
    every = {f"{kind.__name__[1:]}-{where.replace('/', '-').strip('.')}" for kind in KINDS for where in PLACES}
    assert set(found) == {"honest"} | every - missing


def test_records_that_ask_for_too_much_are_no_runs(place: Path) -> None:
    """Three million ranks, numbers beyond all bounds and names that are none cost neither memory nor the others."""
    add(place, "honest")
    damaged: tuple[dict[str, Any], ...] = (
        {"world": 3_000_000}, {"world": 0}, {"world": -1}, {"created_at_ns": 10**30}, {"created_at_ns": -1},
        {"ended_at_ns": 10**20}, {"run": "another"}, {"run_id": "another"}, {"torchrun": {"pid": -1, "started": 0}},
        {"observer": {"pid": 10**20, "started": 0}}, {"state": 5}, {"program": None},
    )  # fmt: skip
    for number, fields in enumerate(damaged):
        add(place, f"bad-{number}", **fields)
    for name in ("-x", "a b", "\x1b[31m", "x" * 41, "u\u0308", ".hidden"):
        add(place, name)
    found, _ = listed(place)
    assert set(found) == {"honest"}


def test_no_text_of_theirs_reaches_the_terminal_as_it_is(place: Path) -> None:
    """Escape sequences in every text of a record and in logs are gone from the table and from the complaints."""
    folder = add(place, "evil", program=EVIL, backend=EVIL, device=EVIL, cause=EVIL, placement=EVIL, state="failed")
    add(place, "unknown", state=EVIL)
    (folder / "logs" / "torchrun.log").write_text(EVIL)
    give(place)
    done = ddptop("ps", "--all")
    assert done.returncode == 0
    assert "resnet" in done.stdout
    for text in (done.stdout, done.stderr):
        assert not set(text) & {"\x1b", "\x9b", "\x07", "\u202e"}


def test_addresses_in_records_are_not_connected_to(place: Path) -> None:
    """A rank's record names a server of the attacker's; nobody connects there, with root's rights or without."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as trap:
        trap.bind(str(place / "trap"))
        os.chown(place / "trap", THEM, THEM)
        (place / "trap").chmod(0o600)
        trap.listen()
        folder = add(place, "lure")
        me = rundir.identify(os.getpid())
        assert me is not None
        addresses = (f"tcp://127.0.0.1:{server.getsockname()[1]}", f"ipc://{place / 'trap'}")
        for rank, address in enumerate(addresses):
            member = Member(rank, rank, 2, me, "h", 0, address, address, None)
            (folder / "ranks" / f"{rank}.json").write_bytes(msgspec.json.encode(member))
        found, _ = listed(place)
        assert found["lure"]["state"] == "running"
        for each in (server, trap):
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.accept()


def test_a_folder_with_very_many_names_is_not_read_to_its_end(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who fills a folder with names holds up nobody: so many are looked at, and no more."""
    folder = add(place, "full")
    member = Member(0, 0, 2, GONE, "h", 0, "", "", None)
    for rank in (0, 1):
        content = msgspec.json.encode(msgspec.structs.replace(member, rank=rank))
        (folder / "ranks" / f"{rank}.json").write_bytes(content)
    give(place)
    directory = rundir.RunDir(folder, THEM)
    assert len(directory.members()) == 2
    monkeypatch.setattr(rundir, "MOST_ENTRIES", 1)
    assert len(directory.members()) == 1
    for number in range(10):
        (base_of(place) / f"n{number}").touch()
    looked_at: list[object] = []
    monkeypatch.setattr(rundir, "is_name", looked_at.append)
    assert rundir.runs_in(base_of(place), THEM) == []
    assert len(looked_at) == 1


def test_each_user_is_read_by_a_process_without_roots_rights(place: Path) -> None:
    """The child that opens another user's files is that user, with no group of root's, no environment and no files."""
    add(place, "a")
    give(place)
    seen = place / f"ddptop-{THEM}" / "seen"

    def read(uid: int, folder: Path) -> list[Frame]:
        lines = Path("/proc/self/status").read_text().splitlines()
        kept = [line.split(":", 1) for line in lines if line.startswith(("Uid", "Gid", "Groups", "CapEff"))]
        told = {name: value.split() for name, value in kept}
        told["environment"] = sorted(os.environ)
        told["files"] = sorted(fd for fd in os.listdir("/proc/self/fd") if int(fd) > 3)
        try:
            os.setuid(0)
        except PermissionError:
            told["back"] = ["no"]
        return [Frame(run="a", state="lost", program=json.dumps(told)[:300], world=1, at=0.0)]

    (child,) = other_users._gather([(THEM, place)], read)
    ((frame,), problem) = other_users._checked(child, "them")
    assert problem == ""
    told = json.loads(frame.program)
    assert told["Uid"] == [str(THEM)] * 4
    assert told["Gid"] == [str(other_users._NOBODY)] * 4
    assert told["Groups"] == []
    assert told["CapEff"] == ["0000000000000000"]
    assert told["environment"] == []
    assert told["files"] == []
    assert told["back"] == ["no"]
    assert not seen.exists()


def _hang(uid: int, folder: Path) -> list[Frame]:
    import signal

    signal.pause()
    return []


def _eat(uid: int, folder: Path) -> list[Frame]:
    return [bytes(1 << 33)]  # type: ignore[list-item]


def _crash(uid: int, folder: Path) -> list[Frame]:
    os.abort()


def _chatter(uid: int, folder: Path) -> list[Frame]:
    with contextlib.suppress(BrokenPipeError):
        while True:
            os.write(1, b" " * 65536)
    return []


def _garbage(uid: int, folder: Path) -> list[Frame]:
    os.write(1, b"[" * 100_000)
    os._exit(0)


def _complain(uid: int, folder: Path) -> list[Frame]:
    raise RuntimeError(EVIL)


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (_hang, "it takes longer than 1 s"),
        (_eat, "MemoryError"),
        (_crash, "its reader was ended by signal 6"),
        (_chatter, "more than 1 MiB to be told"),
        (_garbage, "no answer that makes sense"),
        (_complain, "RuntimeError: resnet"),
    ],
)
def test_a_child_that_fails_costs_one_line(
    read: Callable[[int, Path], list[Frame]], said: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it fails, it is ended, the user is named, and the others are read all the same."""
    monkeypatch.setattr(other_users, "CHILD_S", 1.0)
    good = Frame(run="good", state="lost", program="x.py", world=1, at=0.0)

    def choose(uid: int, folder: Path) -> list[Frame]:
        return read(uid, folder) if uid == THEM else [good]

    children = other_users._gather([(THEM, place), (THEM + 1, place)], choose)
    (_, problem), ((other,), nothing) = (other_users._checked(child, "them") for child in children)
    assert said in problem
    assert (other.run, nothing) == ("good", "")
    for child in children:
        assert not Path(f"/proc/{child.pid}").exists()


ANY = st.none() | st.booleans() | st.integers() | st.integers(10**17, 10**19) | st.floats() | st.text(max_size=400)


@settings(deadline=None, max_examples=80)
@given(st.dictionaries(st.sampled_from(RunFrame.__struct_fields__), ANY), st.binary(max_size=60))
def test_a_child_is_believed_within_bounds_alone(fields: dict[str, Any], noise: bytes) -> None:
    """Whatever a child that was taken over answers is a sound frame, or one line."""
    known = RunFrame(run="a", state="running", program="x", world=1, at=0.0)

    def answer(problem: str = "", **changes: Any) -> bytes:
        tag, *values = msgspec.to_builtins(known)
        told = dict(zip(RunFrame.__struct_fields__, values, strict=True)) | changes
        return msgspec.msgpack.encode({"runs": [{"frame": [tag, *told.values()]}], "problem": problem})

    within = {name: value for name, value in fields.items() if not isinstance(value, int) or abs(value) < 2**63}
    for content in (noise, answer(**within), answer(program=EVIL), answer(str(fields))):
        frames, problem = other_users._checked(other_users._Child(THEM, 1, -1, bytearray(content)), "them")
        assert frames or problem
        for frame in frames:
            rundir.check_name(frame.run)
            assert frame.user == "them"
            assert frame.program.isprintable()
            assert 1 <= frame.world <= rundir.MOST_RANKS


def test_looking_at_others_writes_nothing(place: Path) -> None:
    """No end is written into another user's runs, nor is an observer started for them."""
    folder = add(place, "old")
    give(place)
    before = sorted((str(path), path.stat().st_mtime_ns) for path in base_of(place).rglob("*"))
    found, _ = listed(place)
    assert found["old"]["state"] == "lost"
    assert sorted((str(path), path.stat().st_mtime_ns) for path in base_of(place).rglob("*")) == before
    assert json.loads((folder / "run.json").read_text())["state"] == "running"


def test_a_live_run_of_another_user_is_heard(place: Path) -> None:
    """A user's own listing and root's agree on who lives, and root's says whose it is."""
    with subprocess.Popen(WAITING, user=THEM, group=THEM, extra_groups=[]) as sleeper:
        try:
            process = rundir.identify(sleeper.pid)
            add(place, "alive", torchrun=msgspec.to_builtins(process), observer=msgspec.to_builtins(process))
            found, _ = listed(place)
        finally:
            sleeper.kill()
    assert (found["alive"]["state"], found["alive"]["user"]) == ("running", str(THEM))


def test_without_roots_rights_nothing_of_others_is_looked_at(place: Path) -> None:
    """For everybody else `--all` lists their own runs and says why."""
    add(place, "theirs")
    give(place)
    code = (
        "import os, sys, zmq, psutil, msgspec\n"
        "from ddptop.agent.client.sources import takeover\n"
        "from ddptop.agent.client.host import settings\n"
        "from ddptop.agent.client.sources import other_users\nfrom ddptop.tui.cli import main, view\n"
        "from ddptop.tui.cli.output import status\n"
        "os.setgroups([]); os.setgid(4321); os.setuid(4321)\n"
        "sys.argv = ['ddptop', 'ps', '--all']\n"
        "main.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert "only root sees the runs of others" in done.stderr, done.stderr
    assert "theirs" not in done.stdout


def test_there_is_one_thread_when_it_forks() -> None:
    """What another thread held at that moment, the child would wait for without end; NumPy starts one for each core."""
    code = (
        "import os\n"
        "from pathlib import Path\n"
        "from ddptop.agent.run import rundir\n"
        "from ddptop.agent.client.host import settings\n"
        "from ddptop.tui.cli.verbs import listing\n"
        "def fork():\n"
        "    print(len(os.listdir('/proc/self/task')))\n"
        "    raise OSError(11, 'not now')\n"
        "os.fork = fork\n"
        f"rundir.bases_of_others = lambda: {{{THEM}: Path('/nowhere')}}\n"
        "before = dict(os.environ)\n"
        "listing._others()\n"
        "assert before == dict(os.environ)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "1\n", done.stderr
    assert "not now" in done.stderr
