"""The run directory keeps names apart, strangers out, and half-written files from everybody."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import resource
import time
import unicodedata
from pathlib import Path

import msgspec
import pytest
import zmq

from ddptop.agent.run import hosts, rundir
from ddptop.agent.run.files import private
from ddptop.agent.run.rundir import Ended, Member, Process, Run, RunDir, RunDirError


@pytest.fixture(autouse=True)
def base(tmp_path_factory, monkeypatch):
    """A base of its own for each test."""
    path = Path("/tmp") / f"dt-{os.getpid()}-{time.time_ns() % 10**6}"
    monkeypatch.setenv(rundir.BASE_VARIABLE, str(path))
    yield path
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def a_run(name: str, state: str = "running", created: int = 1) -> Run:
    return Run(name, name, "x.py", (), 2, None, None, created, True, state=state)


def test_only_the_owner_can_enter(base):
    """A new base has mode 0700, and one that others can enter is refused with the cure."""
    assert rundir.base().stat().st_mode & 0o777 == 0o700
    base.chmod(0o755)
    with pytest.raises(RunDirError, match="chmod 700"):
        rundir.base()


def test_a_base_too_long_for_sockets_is_refused(monkeypatch, tmp_path):
    """The limit of a socket path is met with a clear line, not with an error from ZeroMQ later."""
    monkeypatch.setenv(rundir.BASE_VARIABLE, str(tmp_path / ("x" * 90)))
    with pytest.raises(RunDirError, match="too long"):
        rundir.base()


def test_a_base_that_cannot_be_made_is_refused(monkeypatch, tmp_path):
    """An unwritable place gives one line that names the variable to set."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(rundir.BASE_VARIABLE, str(tmp_path / "file" / "x"))
    with pytest.raises(RunDirError, match=rundir.BASE_VARIABLE):
        rundir.base()


def test_a_base_that_cannot_be_written_is_read(base, monkeypatch):
    """Its runs are listed and found; a new one is refused, with what to do."""
    rundir.create(a_run("there"))

    def access(path, mode):
        return (os.stat(path).st_mode >> 6) & mode == mode

    # Root may write everywhere.
    monkeypatch.setattr(os, "access", access)
    base.chmod(0o500)
    assert [run.name for run in rundir.runs()] == ["there"]
    assert rundir.find("the").read().program == "x.py"
    with pytest.raises(RunDirError, match=f"not writable; set {rundir.BASE_VARIABLE}"):
        rundir.create(a_run("another"))
    base.chmod(0o700)


def test_the_end_of_a_run_is_written_down_on_a_full_disk(monkeypatch):
    """Over the record that is there, where no new file can be made; a longer and a shorter one are read as they are.

    So is that of a rank.
    """
    directory = rundir.create(a_run("full"))
    member = Member(0, 0, 1, Process(1, 1.0), "host", 0, "", "", None, by_agent=False)
    directory.write_member(member)

    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(private, "write", full)
    ended = msgspec.structs.replace(member, ended=Ended(7, 1, "ValueError: bad lr"))
    directory.write_member(ended)
    assert list(directory.reported()) == [ended]
    killed = directory.update(state="killed", cause="killed by ada" * 9)
    assert directory.read() == killed
    directory.update(cause="x")
    assert directory.read() == msgspec.structs.replace(killed, cause="x")
    monkeypatch.setattr(os, "pwrite", lambda descriptor, content, at: 0)
    with pytest.raises(OSError, match="No space"):
        directory.update(cause="longer")
    assert directory.read().cause == "x"


def test_a_live_name_is_taken_and_an_ended_one_is_free():
    """Two runs never share a name while one of them lives."""
    first = rundir.create(a_run("a"))
    with pytest.raises(RunDirError, match="--name"):
        rundir.create(a_run("a"))
    first.update(state="finished")
    assert rundir.create(a_run("a", created=2)).read().created_at_ns == 2


def _try_to_create(number: int) -> bool:
    try:
        rundir.create(a_run("same", created=number))
    except RunDirError:
        return False
    return True


def test_of_many_that_come_at_once_one_wins():
    """The name is taken atomically: eight processes race for it, one gets it."""
    with multiprocessing.get_context("fork").Pool(8) as pool:
        assert sum(pool.map(_try_to_create, range(8))) == 1


def test_find_takes_an_unambiguous_beginning():
    """A run is found by a prefix when that is clear, and the error lists the choices when not."""
    for name in ("resnet-1", "resnet-2", "toy"):
        rundir.create(a_run(name))
    assert rundir.find("t").name == "toy"
    with pytest.raises(RunDirError, match="resnet-1, resnet-2"):
        rundir.find("res")
    with pytest.raises(RunDirError, match="ddptop ps"):
        rundir.find("nothing")


def test_find_takes_the_last_four_digits():
    """They find a run where no other has them, nor begins with them; a name without such digits ends as it likes."""
    for name in ("resnet-7f3a", "toy-00c1", "gpt-00c1", "beef-1", "gpt-beef", "my-data"):
        rundir.create(a_run(name))
    assert rundir.find("7f3a").name == "resnet-7f3a"
    for digits, choices in (("00c1", "gpt-00c1, toy-00c1"), ("beef", "beef-1, gpt-beef")):
        with pytest.raises(RunDirError, match=choices):
            rundir.find(digits)
    for other in ("f3a", "data"):
        with pytest.raises(RunDirError, match="no such run"):
            rundir.find(other)


@pytest.mark.parametrize("name", [
        "", "../up", "a/b", "-x", "a b", "x" * 41, "é" * 21, "हिन्दी",
        "\u0301a", "a\u202eb", "a\x1b", "a\x00", "a\u200db", "\udcfc",
        "a\udcfc", "a$b", "a'", "_a", "a\u3000b",
    ],
)  # fmt: skip
def test_names_that_a_shell_or_a_path_would_trip_over_are_refused(name):
    """A run name is always one harmless path component."""
    with pytest.raises(RunDirError):
        rundir.check_name(name)


@pytest.mark.parametrize("name", ["größe-1", "試験.2", "тест_3", "é" * 20, "٣"])
def test_a_name_may_have_letters_of_any_script(name):
    """It names a folder, and is found by its beginning, also where its letters are typed with separate marks."""
    assert rundir.check_name(name) == name
    directory = rundir.create(a_run(name))
    assert directory.path.name == name
    assert [run.name for run in rundir.runs()] == [name]
    assert rundir.find(unicodedata.normalize("NFD", name[:2])).name == name
    assert rundir.check_name(unicodedata.normalize("NFD", name)) == name


@pytest.mark.parametrize(
    ("program", "stem"),
    [
        ("hang ü.py", "hang-ü"),
        ("/a/hang u\u0308.py", "hang-ü"),
        ("ü" * 30, "ü" * 15),
        ("\udcfc.py", "run"),
        ("試 験", "試-験"),
    ],
)
def test_a_run_is_called_as_its_program_is(program, stem):
    """Letters of any script stay, within 30 bytes; what is no letter becomes a dash."""
    assert rundir.stem_of(program, 30) == stem
    assert rundir.check_name(rundir.suggest_name(program)).rpartition("-")[0] == stem


def test_prune_keeps_live_runs_and_the_newest_ended():
    """Old ended runs go, live ones never."""
    rundir.create(a_run("live", created=0))
    for number in range(rundir.KEEP_ENDED + 3):
        rundir.create(a_run(f"old-{number}", "finished", created=1 + number))
    rundir.prune()
    names = {run.name for run in rundir.runs()}
    assert "live" in names
    assert "old-2" not in names
    assert len(names) == rundir.KEEP_ENDED + 1


def test_identity_is_more_than_a_number():
    """A process is alive only under its own start time: a reused number is somebody else."""
    me = rundir.identify(os.getpid())
    assert me is not None
    assert rundir.is_alive(me)
    assert not rundir.is_alive(msgspec.structs.replace(me, started=me.started - 10))
    assert rundir.identify(2**22 + 1) is None


def test_every_base_that_is_accepted_has_room_for_all_sockets(base, monkeypatch):
    """In the longest base, a run with the longest name can bind the socket with the longest name."""
    for length in range(1, 60):
        monkeypatch.setenv(rundir.BASE_VARIABLE, f"{base}/{'b' * length}")
        try:
            accepted = rundir.base()
        except RunDirError:
            break
    else:
        raise AssertionError("no base is too long")
    run = accepted / ("r" * rundir.LONGEST_NAME)
    run.mkdir()
    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        socket.bind(RunDir(run).address("observer", "pub"))


def test_a_record_that_is_only_out_of_reach_is_not_to_be_removed(monkeypatch):
    """Where the process has no descriptor left, or the disk fails, the advice is about that; a missing one may go."""
    directory = rundir.create(a_run("mine"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        with pytest.raises(RunDirError, match="ulimit -n") as caught:
            directory.read()
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "remove" not in str(caught.value)

    def fails(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr("ddptop.agent.run.files.private.read", fails)
        with pytest.raises(RunDirError, match="try again") as caught:
            directory.read()
    assert "remove" not in str(caught.value)
    (directory.path / "run.json").unlink()
    with pytest.raises(RunDirError, match="if no process of it lives, remove"):
        directory.read()


def test_of_the_records_of_ranks_only_what_has_changed_is_read_again(monkeypatch):
    """However it was written: in place of the old file, over it on a full disk, anew after it was gone."""
    directory = rundir.create(a_run("again"))
    me = rundir.identify(os.getpid())
    assert me is not None
    members = [
        rundir.Member(
            rank=rank, local_rank=rank, world=2, process=me, host="here", generation=0, pub="", cmd="", log=None
        )
        for rank in range(2)
    ]
    for member in members:
        directory.write_member(member)
    read: list[str] = []
    content = private.read

    def noted(path: Path | str, limit: int = private.LARGEST_RECORD) -> bytes:
        read.append(Path(path).name)
        return content(path, limit)

    monkeypatch.setattr(private, "read", noted)
    assert [member.host for member in directory.members().values()] == ["here", "here"]
    del read[:]
    assert len(list(directory.reported())) == 2
    assert read == []
    directory.write_member(msgspec.structs.replace(members[1], host="elsewhere"))
    assert directory.members()[1].host == "elsewhere"
    private.overwrite(directory.path / "ranks" / "1.json", msgspec.json.encode(members[1]))
    assert directory.members()[1].host == "here"
    assert read.count("1.json") == 2
    assert "0.json" not in read
    directory.remove_member(1)
    assert list(directory.members()) == [0]
    directory.write_member(members[1])
    assert list(directory.members()) == [0, 1]


def test_the_records_of_ranks_on_other_hosts_are_those_of_the_file_at_any_time():
    """Before it is there, after it was replaced, and after it was removed."""
    directory = rundir.create(a_run("far"))
    me = rundir.identify(os.getpid())
    assert me is not None
    member = rundir.Member(
        rank=1, local_rank=0, world=2, process=me, host="there", generation=0, pub="", cmd="", log=None
    )
    assert directory.far_members() == {}
    (directory.path / "hosts").mkdir(mode=0o700)
    hosts.write_far(directory.path, hosts.FarRanks((member,)))
    assert directory.far_members() == {1: member}
    assert directory.far_members() is directory.far_members()
    after = msgspec.structs.replace(member, host="elsewhere")
    hosts.write_far(directory.path, hosts.FarRanks((after,)))
    assert directory.far_members() == {1: after}
    hosts.far_file(directory.path).unlink()
    assert directory.far_members() == {}
