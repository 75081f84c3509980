"""Nothing without our mark is listed, touched or removed; nothing that lives is, whatever became of its record."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bases import marked
from support.harness import WAIT, WAITING, ddptop, started, until

from ddptop.agent.client import runs
from ddptop.agent.end import freezer, survey
from ddptop.agent.record import recording
from ddptop.agent.run import records, rundir
from ddptop.agent.run.files import marks, private
from ddptop.agent.run.files.presence import EVERY_S, Presence
from ddptop.agent.run.files.private import Claim, Hold, RunDirError
from ddptop.agent.run.rundir import Member, Process, Run, RunDir

OLD = 1_000_000_000
"""Seconds since the epoch, long ago."""


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A base of the test's own, short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
    monkeypatch.setenv(rundir.BASE_VARIABLE, str(path))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def a_run(name: str, state: str = "finished", created: int = 1, **fields: object) -> Run:
    return Run(name, f"id-{name}-{created}", "x.py", (), 2, None, None, created, True, state=state, **fields)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Return mode and content of everything below a folder, by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
        found[str(path.relative_to(folder))] = (status.st_mode, content)
    return found


def foreign(base: Path) -> None:
    """Fill a base with what a person may have in a folder of theirs, some of it called like ours."""
    for name in ("projects", ".backup.20250101", ".resnet.0a1b2c3d", "resnet", "empty"):
        (base / name).mkdir(mode=0o700)
    for name in ("projects/thesis.tex", ".backup.20250101/a", ".resnet.0a1b2c3d/model.pt", "resnet/0.cmd", "notes.txt"):
        (base / name).write_text("years of work")
    # Called and written like a record of ours, in a folder that is not.
    (base / "resnet" / "run.json").write_bytes(json.dumps({"run": "resnet", "state": "finished"}).encode())
    for path in (*base.iterdir(), *base.glob("*/*")):
        os.utime(path, (OLD, OLD))


def test_a_base_in_use_for_other_things_stays_as_it_is(base: Path) -> None:
    """Launches, listings and removals beside somebody's folders change no bit of them."""
    foreign(base)
    before = contents(base)
    for name in ("projects", "resnet", "empty"):
        with pytest.raises(RunDirError, match=r"ddptop did not make this .*; or choose another --name"):
            rundir.create(a_run(name))
    for number in range(rundir.KEEP_ENDED + 3):
        rundir.create(a_run(f"old-{number}", created=1 + number))
    rundir.create(a_run("old-4", created=99))
    runs.tidy()
    for run in rundir.runs():
        assert run.name.startswith("old-")
        rundir.remove(run)
    for name in ("projects", "resnet", "empty", ".resnet.0a1b2c3d"):
        with pytest.raises(RunDirError):
            rundir.remove(RunDir(base / name))
        RunDir(base / name).remove_sockets()
    after = contents(base)
    assert after.pop(marks.NAME)
    assert after == before


def test_the_command_line_leaves_foreign_folders_alone(base: Path) -> None:
    """`ps` and a launch that finds its name taken by somebody's folder say so, and touch nothing."""
    foreign(base)
    before = contents(base)
    assert "no runs yet" in ddptop("ps").stdout
    refused = ddptop("kill", "resnet")
    assert refused.returncode != 0
    after = contents(base)
    after.pop(marks.NAME)
    assert after == before


def test_what_bears_the_name_of_the_mark_is_not_touched(base: Path) -> None:
    """A base that holds something else under that name works, and keeps it."""
    (base / marks.NAME).mkdir()
    (base / marks.NAME / "own").write_text("x")
    directory = rundir.create(a_run("a"))
    assert [run.name for run in rundir.runs()] == ["a"]
    rundir.remove(directory)
    assert (base / marks.NAME / "own").read_text() == "x"


@pytest.mark.parametrize("damage", ["missing", "empty", "other", "link", "world"])
def test_a_damaged_record_is_no_free_ground(base: Path, damage: str) -> None:
    """Where the record cannot be believed, the directory stays, and one line says what to do about it."""
    directory = rundir.create(a_run("a"))
    record = directory.path / "run.json"
    content = record.read_bytes()
    record.unlink()
    if damage == "empty":
        record.write_bytes(b"")
    elif damage == "other":
        directory.write(a_run("a", created=7))
    elif damage == "link":
        (base / "elsewhere").write_bytes(content)
        record.symlink_to(base / "elsewhere")
    elif damage == "world":
        record.write_bytes(content.replace(b'"world":2', b'"world":3000000'))
    (directory.logs / "rank-0.log").write_text("last words")
    for act in (lambda: rundir.create(a_run("a")), lambda: rundir.remove(directory), lambda: rundir.discard(directory)):
        with pytest.raises(RunDirError, match=rf"run a: .*if no process of it lives, remove {directory.path}"):
            act()
    rundir.prune()
    assert (directory.logs / "rank-0.log").read_text() == "last words"
    told: list[str] = []
    assert rundir.runs(told) == []
    (line,) = told
    with pytest.raises(RunDirError) as found:
        rundir.find("a")
    assert str(found.value) == line


def test_a_run_of_a_newer_version_is_not_removed() -> None:
    """What a format means that we do not know, we do not judge."""
    directory = rundir.create(a_run("a"))
    (directory.path / marks.NAME).unlink()
    marks.write(directory.path, marks.Mark(marks.RUN, marks.FORMAT + 1, directory.read().run_id))
    with pytest.raises(RunDirError, match="newer ddptop"):
        rundir.remove(directory)


def test_a_claimed_run_is_not_removed() -> None:
    """Whoever looks after a run keeps everybody from removing it, also where its record says that it is over."""
    directory = rundir.create(a_run("a"))
    with Claim.acquire(directory.path) or pytest.fail("it is free"):
        for act in (lambda: rundir.remove(directory), lambda: rundir.create(a_run("a"))):
            with pytest.raises(RunDirError, match="somebody still looks after it; `ddptop kill a` ends it"):
                act()
        rundir.prune()
    rundir.remove(directory)
    assert not directory.path.exists()


UP = f"print('there', flush=True); {WAIT}"
HOLDER = (
    "import sys\n"
    "from pathlib import Path\n"
    "from ddptop.agent.run.files.presence import Presence\n"
    "from ddptop.agent.run.rundir import RunDir\n"
    "presence = Presence(RunDir(Path(sys.argv[1])), 0)\n"
    "presence.begin()\n"
)


def test_a_run_in_which_a_rank_lives_is_not_removed() -> None:
    """A job started by hand has no observer: its ranks' agents hold the directory, and their end lets go of it."""
    directory = rundir.create(a_run("a"))
    with started(sys.executable, "-c", HOLDER + UP, directory.path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (directory.path / "run.json").rename(directory.path / "kept")
        with pytest.raises(RunDirError, match="no record"):
            rundir.create(a_run("a"))
        (directory.path / "kept").rename(directory.path / "run.json")
        with pytest.raises(RunDirError, match="a process of it still lives"):
            rundir.remove(directory)
        process.kill()
        process.wait()
        rundir.remove(directory)
    assert not directory.path.exists()


def test_a_living_rank_without_a_lock_keeps_its_run() -> None:
    """Where the lock could not be taken, the processes are known by their records."""
    directory = rundir.create(a_run("a"))
    with started(*WAITING) as process:
        identity = rundir.identify(process.pid)
        assert identity is not None
        directory.write_member(Member(1, 1, 2, identity, "h", 0, "", "", None))
        with pytest.raises(RunDirError, match="a process of it still lives"):
            rundir.remove(directory)
        process.kill()
        process.wait()
    rundir.remove(directory)


FORKS = (
    "import os\n"
    "child = os.fork()\n"
    "if child == 0:\n"
    "    print(len([fd for fd in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + fd)\n"
    "        and os.path.samefile('/proc/self/fd/' + fd, sys.argv[1])]), flush=True)\n"
    "    sys.stdin.read()\n"
    "    os._exit(0)\n"
    "os.system('ls -l /proc/self/fd | grep -c ' + sys.argv[1])\n"
    "sys.stdin.read()\n"
)


def test_neither_forks_nor_commands_of_a_script_inherit_the_hold() -> None:
    """A child of a rank holds nothing, its end lets go of nothing, and it keeps no run from being removed."""
    directory = rundir.create(a_run("a"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with started(sys.executable, "-c", HOLDER + FORKS, directory.path, **pipes) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        # Two processes print a line each, and what they print may come in pieces.
        assert sorted(process.stdout.read(4)) == ["\n", "\n", "0", "0"]
        with pytest.raises(RunDirError, match="still lives"):
            rundir.remove(directory)
        process.kill()
        process.wait()
        # The forked child lives on: its standard input is still open.
        rundir.remove(directory)
        process.stdin.close()


def test_a_hold_does_not_close_what_a_script_has_put_in_its_place(tmp_path: Path) -> None:
    """A script that closes every descriptor may get our number for a file of its own; that stays open."""
    hold = Hold.acquire(tmp_path)
    number = hold._descriptor
    with (tmp_path / "own").open("w") as own:
        os.dup2(own.fileno(), number)
        hold.release()
        assert os.write(number, b"x") == 1
        os.close(number)


def skips(folder: Path) -> bool:
    """Say whether systemd-tmpfiles would skip a directory: another process tries for an exclusive lock, as it does."""
    code = (
        "import fcntl, os, sys\n"
        "try: fcntl.flock(os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError: sys.exit(3)"
    )
    return subprocess.run([sys.executable, "-c", code, folder], check=False).returncode == 3


def test_systemd_tmpfiles_skips_the_directory_of_a_live_run() -> None:
    """While an observer or a rank is present, a cleaner that takes the lock passes over it; afterwards not."""
    directory = rundir.create(a_run("a", "running"))
    assert not skips(directory.path)
    observer, rank = Presence(directory), Presence(directory, 0)
    observer.begin()
    rank.begin()
    assert skips(directory.path)
    observer.end()
    assert skips(directory.path)
    rank.end()
    assert not skips(directory.path)


def test_a_hold_that_a_cleaner_was_in_the_way_of_is_taken_later() -> None:
    """A cleaner at work at the moment of the beginning costs no more than a few seconds of the lock."""
    directory = rundir.create(a_run("a", "running"))
    now = 100.0
    presence = Presence(directory, clock=lambda: now)
    cleaner = os.open(directory.path, os.O_RDONLY)
    fcntl.flock(cleaner, fcntl.LOCK_EX)
    presence.begin()
    os.close(cleaner)
    presence.tick()
    assert not skips(directory.path)
    now += 10
    presence.tick()
    assert skips(directory.path)
    presence.end()


@pytest.mark.parametrize("rank", [None, 1])
def test_the_files_of_a_live_run_never_look_old(base: Path, rank: int | None) -> None:
    """Once an hour, and not more often, they get the date of now: all by the observer, its own by a rank."""
    directory = rundir.create(a_run("a", "running"))
    for number in (0, 1):
        directory.write_member(Member(number, number, 2, Process(1, 1.0), "h", 0, "", "", None))
        directory.rank_log(number).write_text("x")
    directory.database.touch()
    (base / "foreign").write_text("x")
    now = 0.0
    presence = Presence(directory, rank, clock=lambda: now)
    presence.begin()

    def old() -> set[str]:
        files = [path for path in base.rglob("*") if path.is_file()]
        return {str(path.relative_to(base)) for path in files if path.stat().st_mtime == path.stat().st_atime == OLD}

    for path in base.rglob("*"):
        os.utime(path, (OLD, OLD))
    everything = old()
    now = EVERY_S - 1
    presence.tick()
    assert old() == everything
    now = EVERY_S + 1
    presence.tick()
    others = {"a/ranks/0.json", "a/logs/rank-0.log"} if rank == 1 else set()
    assert old() == {"foreign", *others}
    presence.end()


def test_what_a_broken_launch_leaves_is_removed_when_its_maker_is_dead(base: Path) -> None:
    """Not by its age: a launch that takes long is not one that has died, and a folder of that name not always ours."""
    staging = base / ".resnet.0a1b2c3d"
    staging.mkdir(mode=0o700)
    (staging / "work").write_text("x")
    os.utime(staging, (OLD, OLD))
    rundir.prune()
    assert staging.exists(), "it bears no mark"
    marks.write(staging, marks.Mark(marks.RUN, run_id="x"))
    maker = Hold.acquire(staging)
    os.utime(staging, (OLD, OLD))
    rundir.prune()
    assert (staging / "work").exists(), "its maker lives"
    maker.release()
    rundir.prune()
    assert not staging.exists()


def test_a_launch_under_way_is_not_cleared_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody tidies up at the very moment before a new directory gets its name: the launch succeeds."""
    rename = Path.rename

    def late(path: Path, target: Path) -> Path:
        rundir.prune()
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    assert rundir.create(a_run("a")).read().run == "a"


def test_a_launch_that_is_killed_halfway_leaves_nothing_for_long(base: Path) -> None:
    """Killed at the worst moment, before the directory gets its name, it leaves a folder that the next one removes."""
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from ddptop.agent.run import rundir\n"
        "Path.rename = lambda *_: os.kill(os.getpid(), 9)\n"
        "rundir.create(rundir.Run('a', 'id', 'x.py', (), 1, None, None, 1, True))\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name[:3] for path in base.iterdir() if path.is_dir()] == [".a."]
    rundir.prune()
    assert [path.name for path in base.iterdir()] == [marks.NAME]


def test_a_removal_that_is_killed_halfway_is_finished_by_the_next(base: Path) -> None:
    """The mark goes last, so that what is left is still known for ours."""
    rundir.create(a_run("a"))
    code = (
        "import os, shutil\n"
        "from ddptop.agent.run import rundir\n"
        "shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), 9)\n"
        "rundir.remove(rundir.find('a'))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert rundir.runs() == []
    rundir.create(a_run("a"))
    rundir.prune()
    assert sorted(path.name for path in base.iterdir()) == [marks.NAME, "a"]


def test_a_copy_that_is_called_like_a_leftover_is_not_removed(base: Path) -> None:
    """It bears the mark as the run does that it was made of; only the folder that was marked is ours."""
    run = rundir.create(a_run("x", "finished"))
    copy = base / ".x.20240101"
    subprocess.run(["cp", "-a", run.path, copy], check=True)
    rundir.prune()
    assert (copy / "run.json").exists()
    # One that was copied as a whole is a run like any other, and its removal, broken off, is finished.
    moved = base / "moved"
    subprocess.run(["cp", "-a", run.path, moved], check=True)
    rundir.remove(run)
    moved.rename(run.path)
    code = (
        "import os, shutil\n"
        "from ddptop.agent.run import rundir\n"
        "shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), 9)\n"
        "rundir.remove(rundir.find('x'))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    rundir.prune()
    assert sorted(path.name for path in base.iterdir()) == [marks.NAME, copy.name]


def test_what_a_removal_leaves_is_told(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's name is free, the message names the file and the folder, and the next one finishes it."""
    run = rundir.create(a_run("x", "finished"))
    (run.path / "stays").touch()
    unlink = os.unlink

    def refuse(path: str, **more: int) -> None:
        if os.path.basename(path) == "stays":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        unlink(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(RunDirError, match=r"removed, but .*/stays could not .*Operation not.*remove .*/\.x\."):
            rundir.remove(run)
        assert rundir.runs() == []
        (left,) = (path for path in base.iterdir() if path.name.startswith(".x."))
        assert sorted(path.name for path in left.iterdir()) == [marks.NAME, "stays"]
        again = rundir.create(a_run("x", "finished"))
        assert rundir.create(a_run("x")).path == again.path
    rundir.prune()
    assert sorted(path.name for path in base.iterdir()) == [marks.NAME, "x"]


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.sampled_from(["running", "finished", "", "tcp://10.0.0.1:1", "/etc/passwd", "\x1b[2J", 65_536, 2**63, -1]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)


def twisted(sound: dict[str, object]) -> st.SearchStrategy[object]:
    """Records in which any field holds anything, and things that are no records."""
    changes = st.dictionaries(st.sampled_from(sorted(sound)), ANY_JSON, max_size=3)
    return ANY_JSON | changes.map(lambda changed: sound | changed)


RUN = {name: getattr(a_run("a", "running"), name) for name in Run.__struct_fields__}
MEMBER = {
    "rank": 0, "local_rank": 0, "world": 2, "process": {"pid": 2**22 + 1, "started": 1.0}, "host": "h",
    "generation": 0, "pub": "tcp://10.0.0.1:1", "cmd": "ipc:///tmp/x", "log": "/etc/passwd",
    "ended": {"at_ns": 5, "exit_code": 1, "error": "x"},
}  # fmt: skip
FROZEN = {"at_ns": 1, "who": "x", "timeout_s": 1.0}


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_anything_may_stand_in_a_record(base: Path, data: st.DataObject) -> None:
    """Whatever JSON is written over a record, it is either believed within its bounds or called damaged."""
    directory = RunDir(base / "a")
    if not directory.path.exists():
        rundir.create(a_run("a", "running"))
    for path, sound in (
        (directory.path / "run.json", RUN),
        (directory.path / "ranks" / "0.json", MEMBER),
        (directory.path / "frozen.json", FROZEN),
        (directory.path / marks.NAME, {"kind": marks.RUN, "format": 1, "run_id": "id-a-1"}),
    ):
        path.write_text(json.dumps(data.draw(twisted(sound))))
    for member in directory.members().values():
        assert (member.pub, member.cmd) == (
            directory.address(member.rank, "pub"),
            directory.address(member.rank, "cmd"),
        )
        assert member.log in (None, str(directory.rank_log(member.rank)))
        assert member.rank == 0
    freezer.frozen(directory)
    freezer.has_stopped(directory)
    rundir.runs()
    for look in (directory.read, directory.read_own, lambda: survey.look(directory)):
        with contextlib.suppress(RunDirError):
            look()
    with contextlib.suppress(RunDirError):
        rundir.create(a_run("a"))


@pytest.mark.parametrize("content", [b"[" * 500_000, b'{"x":' * 100_000, b"\xff\xfe", b'{"world":1e400}', b'"\\ud800"'])
def test_what_breaks_parsers_is_a_damaged_record(content: bytes) -> None:
    """Nesting without end, broken encodings and numbers beyond all bounds are errors of one kind."""
    with pytest.raises(ValueError):  # noqa: PT011 # whichever text
        records.decode(content, Run)


def test_ranks_that_the_run_does_not_have_are_left_out() -> None:
    """Neither a rank beyond the world nor one under another's name is believed."""
    directory = rundir.create(a_run("a", "running"))
    member = Member(1, 1, 2, Process(1, 1.0), "h", 0, "tcp://a", "tcp://b", "/etc/passwd")
    directory.write_member(member)
    for name, rank in (("2", 2), ("0", 1), ("00", 0), ("x", 0)):
        (directory.path / "ranks" / f"{name}.json").write_text(json.dumps(MEMBER | {"rank": rank}))
    (found,) = directory.members().values()
    assert (found.rank, found.pub) == (1, directory.address(1, "pub"))


@contextlib.contextmanager
def full(folder: Path) -> Iterator[Path]:
    """Give a folder that `fill` can fill: on a small file system, else by the limit of a file's size."""
    small = folder / "small"
    small.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,nr_inodes=40,mode=700", "tmpfs", small],
        capture_output=True,
        check=False,
    )
    if mounted.returncode == 0:
        try:
            yield small
        finally:
            subprocess.run(["umount", "-l", small], check=True)
        return
    # The kernel then refuses each write with EFBIG, at the same places.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        yield small
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def fill(folder: Path, names: bool = False) -> None:
    """Use up what room there is: for bytes, or for names, so that not even an empty file can be made."""
    if not os.path.ismount(folder):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return
    with contextlib.suppress(OSError):
        for number in range(1000 if names else 0):
            (folder / f"no-{number}").touch()
    with (folder / ("no-0" if names else "flood")).open("wb", buffering=0) as flood, contextlib.suppress(OSError):
        while True:
            flood.write(bytes(4096))


WRITES: dict[str, Callable[[RunDir], object]] = {
    "record": lambda directory: directory.update(cause="x" * 8192),
    "rank": lambda directory: directory.write_member(Member(0, 0, 1, Process(1, 1.0), "h" * 8192, 0, "", "", None)),
    "replace": lambda directory: private.replace(directory.path / "run.json", b"x" * 8192),
}


@pytest.mark.parametrize("write", WRITES)
def test_on_a_full_disk_what_was_there_stays_whole(base: Path, write: str) -> None:
    """A write that finds no room says so, changes nothing that was there, and leaves no half of itself."""
    with full(base) as small:
        directory = RunDir(small / "a")
        for folder in (directory.path, directory.path / "ranks", directory.logs):
            folder.mkdir(mode=0o700)
        marked(directory.path)
        directory.write(a_run("a"))
        before = contents(directory.path)
        fill(small)
        with pytest.raises(OSError, match=rf"Errno ({errno.ENOSPC}|{errno.EFBIG})"):
            WRITES[write](directory)
        assert contents(directory.path) == before
        assert directory.read().state == "finished"
        freezer.frozen(directory)
        recording.events_of(directory.database, directory.read())


@pytest.mark.parametrize("names", [False, True])
def test_on_a_full_disk_nothing_begins_and_ended_runs_can_be_removed(
    base: Path, monkeypatch: pytest.MonkeyPatch, names: bool
) -> None:
    """A launch is refused in one line, also where the room runs out under its hands; removing needs no room."""
    monkeypatch.setattr(rundir, "LEAST_ROOM", 0)
    with full(base) as small:
        monkeypatch.setenv(rundir.BASE_VARIABLE, str(small))
        rundir.create(a_run("old"))
        before = contents(small / "old")
        fill(small, names)
        with pytest.raises(RunDirError, match="runtime directory"):
            rundir.create(a_run("new", cause="x" * 8192))
        assert contents(small / "old") == before
        assert sorted(path.name for path in small.iterdir() if path.is_dir()) == ["old"], "no half of a run is left"
        rundir.remove(rundir.find("old"))
        assert not (small / "old").exists()


def test_a_restart_waits_for_the_observer_to_let_go() -> None:
    """The record calls a run over a moment before its claim is free: its name can be taken at once all the same."""
    directory = rundir.create(a_run("a"))
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from ddptop.agent.run.files.private import Claim\n"
        "claim = Claim.acquire(Path(sys.argv[1]))\n"
        "print('held', flush=True)\n"
        "sys.stdin.readline()\n"
        "time.sleep(0.1)\n"
        "claim.release()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with started(sys.executable, "-c", code, directory.path, **pipes) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert rundir.create(a_run("a", created=2)).read().created_at_ns == 2
        until(lambda: holder.poll() is not None, "the holder's end")
