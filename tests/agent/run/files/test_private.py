"""What is ours alone: nobody else's files are trusted, nobody else gets at ours, and of two one has the claim."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from ddptop.agent.control import caller
from ddptop.agent.run import rundir
from ddptop.agent.run.files import marks, private
from ddptop.agent.run.files.private import Claim, RunDirError
from ddptop.agent.run.rundir import Run, RunDir
from ddptop.agent.wire.vocabulary.refusals import Refused

NOBODY = 65534

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of other users")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the test's own that stands for /tmp, with a path short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
    path.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.delenv(rundir.BASE_VARIABLE, raising=False)
    yield path
    shutil.rmtree(path)


def a_run(base: Path, name: str, owner: int) -> RunDir:
    """Write the record of a run of that user."""
    folder = base / name
    for each in (base, folder, folder / "ranks"):
        each.mkdir(mode=0o700, exist_ok=True)
    run = Run(name, name, "x.py", (), 1, None, None, 1, True, state="running")
    (folder / "run.json").write_bytes(msgspec.json.encode(run))
    if not (folder / marks.NAME).exists():
        marks.write(folder, marks.Mark(marks.RUN, run_id=name))
    for each in (base, *base.rglob("*")):
        os.chown(each, owner, owner)
    return RunDir(folder, owner)


def test_a_link_in_the_place_of_the_base_is_not_followed(place: Path) -> None:
    """Whoever puts a link at /tmp/ddptop-UID gets nothing written behind it, and the user one line."""
    victim = place / "victim"
    victim.mkdir(mode=0o700)
    (place / f"ddptop-{os.getuid()}").symlink_to(victim)
    with pytest.raises(RunDirError, match=r"not a directory; remove it or set DDPTOP_RUNTIME_DIR"):
        rundir.base()
    assert list(victim.iterdir()) == []


@needs_root
def test_a_base_of_somebody_else_is_refused(place: Path) -> None:
    """A directory that another user has made first is not used, whatever its mode."""
    folder = place / f"ddptop-{os.getuid()}"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(RunDirError, match=f"belongs to user {NOBODY}, not to you"):
        rundir.base()


def test_a_run_that_others_can_enter_is_refused(place: Path) -> None:
    """A record that somebody else could have written is not read."""
    directory = a_run(rundir.base(), "a", os.getuid())
    assert directory.read().run == "a"
    directory.path.chmod(0o770)
    with pytest.raises(RunDirError, match=r"others can enter it \(mode 0770\); chmod 700 it"):
        directory.read()


@pytest.mark.parametrize("kind", ["open", "file", "other"])
def test_a_socket_that_is_not_ours_alone_is_not_spoken_to(place: Path, kind: str) -> None:
    """A command goes to no socket that others can use, that is none, or that another user owns."""
    path = place / "0.cmd"
    if kind == "file":
        path.write_text("")
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
        path.chmod(0o666 if kind == "open" else 0o600)
    if kind == "other":
        if os.getuid() != 0:
            pytest.skip("only root can make files of other users")
        os.chown(path, NOBODY, NOBODY)
    expected = {"open": "chmod 600", "file": "not a socket", "other": f"belongs to user {NOBODY}"}[kind]
    with zmq.Context() as context, pytest.raises(Refused, match=expected):
        caller.connect(context, zmq.DEALER, f"ipc://{path}")


def test_only_a_plain_file_is_a_record(place: Path) -> None:
    """Neither a link nor a pipe nor a flood is read: root looks at other users' runs."""
    (place / "secret").write_text("x")
    (place / "link").symlink_to(place / "secret")
    os.mkfifo(place / "pipe")
    (place / "flood").write_bytes(bytes(private.LARGEST_RECORD + 1))
    for name in ("link", "pipe", "flood", "absent"):
        with pytest.raises(OSError):  # noqa: PT011 # whichever, it is not read
            private.read(place / name)
    assert private.read(place / "secret") == b"x"


def test_a_record_that_grows_while_it_is_read_is_read_whole(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that ends on a full disk writes over its record in place; the size of before bounds nothing."""
    record = place / "record"
    record.write_bytes(b"old")
    status_of = os.fstat

    def grows(descriptor: int) -> os.stat_result:
        before = status_of(descriptor)
        record.write_bytes(b"a longer one")
        return before

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", grows)
        assert private.read(record) == b"a longer one"
        with pytest.raises(OSError, match="larger than any record"):
            private.read(record, 8)
        assert private.read(record, 12) == b"a longer one"


@needs_root
def test_root_sees_the_runs_of_all_and_no_impostor(place: Path) -> None:
    """`ps --all`: everybody's own folder counts, one that belongs to somebody else than its name says does not."""
    a_run(place / "ddptop-0", "mine", 0)
    a_run(place / f"ddptop-{NOBODY}", "theirs", NOBODY)
    a_run(place / "ddptop-1234", "forged", NOBODY)
    (place / "ddptop-77").symlink_to(place / f"ddptop-{NOBODY}")
    assert rundir.bases_of_others() == {NOBODY: place / f"ddptop-{NOBODY}"}
    assert [run.name for run in rundir.runs()] == ["mine"]


def test_a_claim_is_held_once_and_let_go_without_a_trace(place: Path) -> None:
    """While it is held nobody else gets it; afterwards anybody does, and no file is left."""
    first = Claim.acquire(place)
    assert first is not None
    assert Claim.acquire(place) is None
    first.release()
    assert list(place.iterdir()) == []
    with Claim.acquire(place) or pytest.fail("it is free"):
        pass


def test_letting_go_does_not_touch_a_newer_run_of_that_name(place: Path) -> None:
    """The folder is removed and made anew while the claim is held: the new claim is somebody else's, and stays."""
    folder = place / "run"
    folder.mkdir()
    old = Claim.acquire(folder)
    assert old is not None
    folder.rename(place / "gone")
    folder.mkdir()
    new = Claim.acquire(folder)
    assert new is not None
    old.release()
    assert Claim.acquire(folder) is None
    new.release()
