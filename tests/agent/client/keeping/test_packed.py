"""Packed runs: the same run again on any machine, small, and harmless whoever has made the file."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from support.values.ended_runs import recorded

from ddptop.agent.client import look
from ddptop.agent.client.comparison import compared, reading
from ddptop.agent.client.keeping import kept, packed
from ddptop.agent.client.keeping.packed import MAGIC, PackedError
from ddptop.agent.client.runs import Run
from ddptop.agent.client.start import run as start
from ddptop.agent.client.start.request import RequestError
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
    assert kept.keep(run, "nightly", kept.BASELINES) == kept.keep(other, "nightly", kept.BASELINES)
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
    later = msgspec.msgpack.decode(content[len(MAGIC) :], type=packed._File)
    later.form = 2
    files = {
        "absent": (None, "no such file"),
        "text": (b"hello", "no packed run"),
        "later": (MAGIC + msgspec.msgpack.encode(later), "packed by a newer ddptop"),
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


def test_nothing_is_unpacked_that_is_larger_than_it_says(data: Path) -> None:
    """Neither a part beyond the bound, nor one that would swell beyond its own size."""
    file = msgspec.msgpack.decode(packed.pack(Run(recorded("a", steps=20)))[len(MAGIC) :], type=packed._File)
    for size in (packed.MOST_UNPACKED, file.parts[3].size - 1, file.parts[3].size + 1, 0):
        parts = (*file.parts[:3], packed._Part(size, file.parts[3].content), *file.parts[4:])
        changed = MAGIC + msgspec.msgpack.encode(replace(file, parts=parts))
        with pytest.raises(PackedError, match="damaged"):
            packed.unpack(changed, data, "file")


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
    file = msgspec.msgpack.decode(packed.pack(run)[len(MAGIC) :], type=packed._File)
    for name in ("../../x", "/x", "..", ""):
        hostile = msgspec.json.encode(replace(directory.read(), run=name))
        parts = (packed._Part(len(hostile), zlib.compress(hostile)), *file.parts[1:])
        with pytest.raises(PackedError, match="damaged"):
            packed.unpack(MAGIC + msgspec.msgpack.encode(replace(file, parts=parts)), data, "file")
    assert not (data / "touched").exists()


def test_a_damaged_file_never_does_worse_than_to_say_so(tmp_path: Path) -> None:
    """Bytes are changed, cut out and put in, also within the parts: it is read, or refused in one line."""
    rng = random.Random(7)
    content = packed.pack(Run(recorded("a", steps=30)))
    file = msgspec.msgpack.decode(content[len(MAGIC) :], type=packed._File)
    refused = 0
    for number in range(150):
        folder = tmp_path / str(number)
        folder.mkdir(mode=0o700)
        if number % 2:
            harmed = bytearray(content)
            for _ in range(rng.randrange(1, 8)):
                at = rng.randrange(len(harmed))
                harmed[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(1, 3))
            given = bytes(harmed)
        else:
            which = rng.randrange(len(file.parts))
            raw = bytearray(zlib.decompress(file.parts[which].content))
            for _ in range(rng.randrange(1, 8)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
            parts = list(file.parts)
            parts[which] = packed._Part(len(raw), zlib.compress(bytes(raw)))
            given = MAGIC + msgspec.msgpack.encode(replace(file, parts=tuple(parts)))
        try:
            run = packed.unpack(given, folder, "file")
            reading.read(run, "test")
        except rundir.RunDirError as problem:
            refused += 1
            assert "\n" not in str(problem)  # noqa: PT017 - some of them are read
        assert [each.name for each in tmp_path.iterdir() if not each.name.isdecimal()] == []
    assert 30 < refused < 150
