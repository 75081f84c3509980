"""Packed runs: the same run again on any machine, small, and harmless whoever has made the file."""

from __future__ import annotations

import random
import tempfile
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from support.values.ended_runs import recorded

from ddptop.agent import wire
from ddptop.agent.client import look
from ddptop.agent.client.comparison import compared, reading
from ddptop.agent.client.keeping import kept, packed
from ddptop.agent.client.keeping.packed import MAGIC, PackedError
from ddptop.agent.client.logs.of_run import RunLogs
from ddptop.agent.client.runs import Run
from ddptop.agent.client.start import run as start
from ddptop.agent.client.start.request import RequestError
from ddptop.agent.record import recording
from ddptop.agent.run import rundir


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def test_a_packed_run_is_read_like_the_run_itself() -> None:
    """Its numbers but for rounding, its whole steps, its frames, its report; and it takes few bytes a step and rank."""
    directory = recorded("a", steps=1200)
    directory.logs.joinpath("rank-0.log").write_bytes(b"the last words\n")
    run = Run(directory)
    path = kept.keep(run, "best")
    assert path.stat().st_size <= 40 * 2 * 1200
    one = reading.read(run, "test")
    with kept.opened(path) as again:
        assert (again.name, again.state(), again.has_ended()) == ("best", "finished", True)
        other = reading.read(again, "test")
        assert np.array_equal(one.steps, other.steps)
        for name, table in one.values.items():
            assert np.allclose(table, other.values[name], rtol=1 / 2048, equal_nan=True)
        assert len(other.wait) > 20
        found = compared.compare(one, other)
        assert (found.outcome, list(found.differs)) == ("same", [])
        assert [each.step for each in look.frames([again], "test")[0].ranks] == [1200, 1200]
        assert again.report().state == "finished"
        assert again.directory.rank_log(0).read_bytes() == b"the last words\n"
    assert not again.directory.path.exists()


def test_a_run_that_goes_on_is_not_packed(data: Path) -> None:
    """Nor is a name given twice, nor a file written over; a baseline is replaced."""
    run, other = Run(recorded("a", steps=20)), Run(recorded("b", steps=20))
    kept.keep(run, "best")
    with pytest.raises(PackedError, match="kept as best already"):
        kept.keep(other, "best")
    assert kept.keep(run, "nightly", kept.BASELINE) == kept.keep(other, "nightly", kept.BASELINE)
    with kept.meant("nightly") as found:
        assert found.name == "b"
    (data / "x.ddptop").touch()
    with pytest.raises(PackedError, match="exists already"):
        kept.write(run, data / "x.ddptop")
    with pytest.raises(rundir.RunDirError, match="name"):
        kept.keep(run, "../x")


def test_what_is_no_packed_run_is_one_line(data: Path) -> None:
    """An absent file, a folder, any other file, one of a later form, one that is cut off."""
    content = packed.pack(Run(recorded("a", steps=20)))
    files = {
        "absent": (None, "no such file"),
        "text": (b"hello", "no packed run"),
        "later": (MAGIC.replace(b"1", b"2") + content[len(MAGIC) :], "packed by a newer ddptop"),
        "cut": (content[:-30], "damaged"),
    }
    for name, (bytes_, said) in files.items():
        path = data / f"{name}.ddptop"
        if bytes_ is not None:
            path.write_bytes(bytes_)
        with pytest.raises(PackedError, match=said) as problem, kept.opened(path):
            pass
        assert "\n" not in str(problem.value)
    with pytest.raises(PackedError, match="plain file"), kept.opened(data):
        pass


def opened(content: bytes) -> dict[str, Any]:
    """Return the parts of a packed run by their names."""
    found: dict[str, Any] = msgspec.msgpack.decode(zlib.decompress(content[len(MAGIC) :]))
    return found


def changed(content: bytes, **parts: Any) -> bytes:
    """Return a packed run with others of its parts."""
    return MAGIC + zlib.compress(msgspec.msgpack.encode(opened(content) | parts))


def test_nothing_is_unpacked_beyond_a_bound(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the file is; nor is anything taken that follows it."""
    content = packed.pack(Run(recorded("a", steps=20)))
    monkeypatch.setattr(packed, "MOST_UNPACKED", 1 << 20)
    for harmful in (changed(content, more=b" " * (1 << 20)), content + b"x"):
        with pytest.raises(PackedError, match="damaged"):
            packed.unpack(harmful, data, "file")


def test_a_file_of_somebody_else_starts_nothing_and_names_no_path(data: Path) -> None:
    """Its command line is not run, its processes are nobody's, and its name is no way out of the folder."""
    directory = recorded("a", steps=20, command=("touch", str(data / "touched")))
    run = Run(directory)
    with kept.opened(kept.keep(run, "x")) as found:
        record = found.record()
        assert (record.command, record.launched, record.torchrun, record.observer) == ((), False, None, None)
        assert {member.process.pid for member in found.directory.members().values()} == {0}
        # So no key offers that.
        assert not look.frames([found], "test")[0].launched
        with pytest.raises(RequestError, match="started by hand"):
            start.restart(found)
    for name in ("../../x", "/x", "..", ""):
        hostile = changed(packed.pack(run), record=msgspec.json.encode(replace(directory.read(), run=name)))
        with pytest.raises(PackedError, match="damaged"):
            packed.unpack(hostile, data, "file")
    assert not (data / "touched").exists()


@pytest.mark.parametrize("kind", [{"by_agent": False}, {"joined": True}])
def test_a_rank_of_a_file_has_its_log_in_the_file(data: Path, kind: dict[str, bool]) -> None:
    """Whatever path it names as that of its output, of which nothing is shown."""
    directory = recorded("a", steps=20)
    directory.logs.joinpath("rank-0.log").write_bytes(b"its own words\n")
    (data / "mine").write_text("nobody else's business\n")
    ranks = [replace(each, log=str(data / "mine"), **kind) for each in directory.members().values()]
    folder = data / "x"
    folder.mkdir(mode=0o700)
    run = packed.unpack(changed(packed.pack(Run(directory)), ranks=msgspec.json.encode(ranks)), folder, "file")
    assert [run.directory.output(rank).is_relative_to(folder) for rank in (0, 1)] == [True, True]
    assert run.directory.output(0).read_bytes() == b"its own words\n"
    assert run.prints_to_files()


@pytest.mark.parametrize("names", [("out.log", "out.log"), ("0.log", "1.log")])
def test_the_output_of_ranks_without_an_agent_is_packed(data: Path, names: tuple[str, str]) -> None:
    """From the files that it went to, wherever these are; one that several ranks share comes once, and as shared."""
    directory = recorded("a", steps=20)
    directory.update(outside=True, launched=False)
    for rank, name in enumerate(names):
        (data / name).write_text(f"the words in {name}\n")
        member = directory.members()[rank]
        directory.write_member(replace(member, log=str(data / name), by_agent=False))
    before = [stream.source.rank for stream in RunLogs(directory).streams]
    path = kept.keep(Run(directory), "best")
    for name in names:
        (data / name).unlink(missing_ok=True)
    with kept.opened(path) as again:
        words = [again.directory.output(rank).read_text() for rank in (0, 1)]
        assert words == [f"the words in {name}\n" for name in names]
        assert [stream.source.rank for stream in RunLogs(again.directory).streams] == before


@pytest.mark.parametrize("swollen", ["wide row", "many rows", "many buckets", "many ranks", "long record"])
def test_a_small_file_takes_little_memory(data: Path, swollen: str) -> None:
    """A file of some KiB has millions of empty things in it; it is refused before they are made."""
    most = 4 << 20
    empty = b"\xdd" + most.to_bytes(4, "big") + b"\x90" * most
    parts: dict[str, dict[str, Any]] = {
        "wide row": {"events": msgspec.Raw(b"\x91" + empty)},
        "many rows": {"events": msgspec.Raw(empty)},
        "many buckets": {"buckets": msgspec.Raw(empty)},
        "many ranks": {"ranks": b"[" + b"{}," * most + b"{}]"},
        "long record": {"record": b'{"arguments":[' + b'"",' * most + b'""]}'},
    }
    content = changed(packed.pack(Run(recorded("a", steps=20))), **parts[swollen])
    assert len(content) < 64 << 10
    tracemalloc.start()
    try:
        with pytest.raises(PackedError, match="damaged"):
            packed.unpack(content, data, "file")
        assert tracemalloc.get_traced_memory()[1] < 4 * len(zlib.decompress(content[len(MAGIC) :]))
    finally:
        tracemalloc.stop()


def test_a_packed_run_has_no_secrets(data: Path) -> None:
    """Neither in its cause, in a rank's error, in events nor in logs, even where the log is cut within one."""
    secret = 'hunter2 "and more"'
    directory = recorded(
        "a", steps=20, state="failed", cause=f"rank 0: ValueError: {secret}", cause_rank=0,
        arguments=("--api-key", secret), environment={"TOKEN": "program"},
    )  # fmt: skip
    ended = rundir.Ended(directory.read().created_at_ns, 1, f"ValueError: {secret}")
    directory.write_member(replace(directory.members()[0], ended=ended))
    end = f"{secret}\n".encode()
    directory.logs.joinpath("rank-0.log").write_bytes(secret.encode() + b"x" * (packed.LOG_TAIL - len(end) - 5) + end)
    with recording.open_file(directory.database) as connection:
        event = wire.Event(1, f"it says {secret}")
        connection.execute(recording.INSERT_EVENT, (1, wire.encode(event)))
    content = packed.pack(Run(directory))
    raw = zlib.decompress(content[len(MAGIC) :])
    assert b"hunter2" not in raw
    assert b"and more" not in raw
    assert b'ore\\"' not in raw
    folder = data / "x"
    folder.mkdir(mode=0o700)
    run = packed.unpack(content, folder, "file")
    assert (run.state(), run.record().cause) == ("failed", "rank 0: ValueError: ***")
    assert "it says " + "*" * len(secret) in [each.text for each in run.report().events]


def test_a_machine_without_room_for_a_file_says_so(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, that names the reason."""
    path = kept.keep(Run(recorded("a", steps=30)), "best")

    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    with pytest.raises(PackedError, match=r"best\.ddptop: No space left"), kept.opened(path):
        pass


@pytest.mark.parametrize("harm", ["substr(payload, 2) WHERE number = 'step'", "substr(payload, 2) WHERE number = ''"])
def test_a_damaged_piece_of_a_record_costs_itself(data: Path, harm: str) -> None:
    """The rest is packed; also where the record was that of a packed run."""
    directory = recorded("a", steps=30)
    with recording.open_file(directory.database) as connection:
        connection.execute(f"UPDATE buckets SET payload = {harm}")
    connection.close()
    folder = data / "x"
    folder.mkdir(mode=0o700)
    assert packed.unpack(packed.pack(Run(directory)), folder, "file").report().state == "finished"


def test_a_damaged_file_never_does_worse_than_to_say_so(tmp_path: Path) -> None:
    """Bytes are changed, cut out and put in, also within the parts: it is read, or refused in one line."""
    rng = random.Random(7)
    content = packed.pack(Run(recorded("a", steps=30)))
    refused = 0
    for number in range(150):
        folder = tmp_path / str(number)
        folder.mkdir(mode=0o700)
        harmed = bytearray(content if number % 2 else zlib.decompress(content[len(MAGIC) :]))
        for _ in range(rng.randrange(1, 8)):
            at = rng.randrange(len(harmed))
            harmed[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(1, 3))
        given = bytes(harmed) if number % 2 else MAGIC + zlib.compress(bytes(harmed))
        try:
            run = packed.unpack(given, folder, "file")
            reading.read(run, "test")
            packed.pack(run)
        except rundir.RunDirError as problem:
            refused += 1
            assert "\n" not in str(problem)  # noqa: PT017 - some of them are read
        assert [each.name for each in tmp_path.iterdir() if not each.name.isdecimal()] == []
    assert 30 < refused < 150
