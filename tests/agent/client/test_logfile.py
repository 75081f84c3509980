"""A log that is read from any place on while others write it, cut it, and replace it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.agent.client.logs.logfile import LogFile, RawLine
from ddptop.agent.run.files import sparse


def contents(lines: list[RawLine]) -> list[bytes]:
    """Return what the lines say."""
    return [line.content for line in lines]


def forwards(log: LogFile, most: int) -> tuple[list[RawLine], bytes]:
    """Return all lines from the beginning, and what is written of the last one."""
    found: list[RawLine] = []
    at, rest = 0, b""
    while (stretch := log.after(at, most)) is not None:
        found += stretch.lines
        rest = stretch.rest
        if stretch.end == at:
            break
        at = stretch.end
    return found, rest


def backwards(log: LogFile, at: int, most: int) -> list[RawLine]:
    """Return all lines before an offset, oldest first."""
    found: list[RawLine] = []
    while at:
        stretch = log.before(at, most)
        found[:0] = stretch.lines
        assert stretch.begin < at
        at = stretch.begin
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=30), st.integers(16, 80))
def test_both_directions_read_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], most: int
) -> None:
    """However much is read at once: every line whole and in its place, none twice, none left out."""
    path = tmp_path_factory.mktemp("log") / "rank-0.log"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    found, rest = forwards(LogFile(path), most)
    assert contents(found) == lines
    assert rest == b""
    assert backwards(LogFile(path), path.stat().st_size, most) == found
    data = path.read_bytes()
    assert all(data[line.begin : line.end] == line.content + b"\n" for line in found)


def test_a_line_that_comes_in_pieces_is_one(tmp_path: Path) -> None:
    """A line is given when it is whole; what is written of the next one can be seen."""
    path = tmp_path / "rank-0.log"
    log = LogFile(path)
    with pytest.raises(FileNotFoundError):
        log.after(0)
    with path.open("ab", buffering=0) as writer:
        writer.write(b"half")
        first = log.after(0)
        assert first is not None
        assert (first.lines, first.rest, first.end) == ([], b"half", 0)
        assert log.after(0) is None
        writer.write(b" a line\nmore")
        second = log.after(0)
        assert second is not None
        assert (contents(second.lines), second.rest) == ([b"half a line"], b"more")


def test_a_line_without_an_end_comes_in_pieces(tmp_path: Path) -> None:
    """No log fills the memory: of a line of a MiB no more than what is read at once is held, in either direction."""
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"first\n" + b"x" * (1 << 20) + b"\nend\n")
    most = 64 << 10
    ways = forwards(LogFile(path), most)[0], backwards(LogFile(path), path.stat().st_size, most)
    for found in ways:
        assert max(len(line.content) for line in found) <= most
        assert b"".join(contents(found)) == b"first" + b"x" * (1 << 20) + b"end"
        assert found[0].content == b"first"
        assert found[-1].content == b"end"


def test_another_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    """One that is cut short, replaced, or cut short and longer again, is begun anew; nothing of the old is mixed in."""
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"first\nhalf")
    log = LogFile(path)
    place = 0

    def read() -> list[bytes]:
        nonlocal place
        stretch = log.after(place)
        assert stretch is not None
        place = stretch.end
        return contents(stretch.lines)

    assert read() == [b"first"]
    path.write_bytes(b"short\n")
    assert read() == [b"short"]
    other = tmp_path / "other"
    other.write_bytes(b"a longer line than before\n")
    other.replace(path)
    assert read() == [b"a longer line than before"]
    assert log.after(place) is None
    assert log.begun == 3
    path.write_bytes(b"cut short, and grown beyond it before anybody looked\n")
    assert read() == [b"cut short, and grown beyond it before anybody looked"]
    assert log.begun == 4


def test_a_hole_at_the_end_is_told_with_what_follows(tmp_path: Path) -> None:
    """The bytes that are cut out are told once, also where nothing came after them for a while."""
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"")
    os.truncate(path, 1 << 20)
    log = LogFile(path)
    assert log.after(0) is None
    with path.open("ab") as writer:
        writer.write(b"after\n")
    for found in (forwards(log, 1 << 16)[0], backwards(log, path.stat().st_size, 1 << 16)):
        cut, after = contents(found)
        assert b"1.0 MiB are not here" in cut
        assert after == b"after"


@pytest.mark.parametrize("most", [1 << 12, 1 << 14, 1 << 22])
def test_a_log_with_a_hole_reads_the_same_both_ways(tmp_path: Path, most: int) -> None:
    """What is left of a line before the hole is a line, the hole is one, and not one NUL is read."""
    path = tmp_path / "rank-0.log"
    path.write_text("".join(f"line {number:06d} of the log\n" for number in range(20_000)))
    size = path.stat().st_size
    sparse.cut(path, 64 << 10)
    found, _ = forwards(LogFile(path), most)
    assert backwards(LogFile(path), size, most) == found
    (hole,) = [line for line in found if b"cut out" in line.content]
    assert hole.end - hole.begin > size // 2
    assert not any(b"\0" in line.content for line in found)
    assert [line.begin for line in found[1:]] == [line.end for line in found[:-1]]
    assert (found[0].begin, found[-1].end) == (0, size)


def test_what_was_read_may_be_cut_out(tmp_path: Path) -> None:
    """Cutting the middle of a log that is followed does not make it another log."""
    path = tmp_path / "rank-0.log"
    path.write_text("".join(f"line {number:06d} of the log\n" for number in range(20_000)))
    log = LogFile(path)
    first = log.after(0, 200 << 10)
    assert first is not None
    sparse.cut(path, 64 << 10)
    following = log.after(first.end, 200 << 10)
    assert following is not None
    assert b"cut out" in following.lines[0].content
    assert log.begun == 1


def test_half_a_log_is_not_told_as_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that fails while it is read is an error, as are a link and a folder in its place."""
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"first\n")
    link = tmp_path / "link.log"
    link.symlink_to(path)
    for each in (link, tmp_path):
        with pytest.raises(OSError, match=r"."):
            LogFile(each).after(0)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sparse, "read", fail)
    with pytest.raises(OSError, match="error"):
        LogFile(path).after(0)


def test_no_descriptor_is_held(tmp_path: Path) -> None:
    """Between two reads a log is closed, so that the logs of a thousand ranks can be followed."""
    logs = []
    for rank in range(50):
        path = tmp_path / f"rank-{rank}.log"
        path.write_bytes(b"line\n")
        logs.append(LogFile(path))
    before = len(os.listdir("/proc/self/fd"))
    for log in logs:
        assert log.after(0) is not None
        log.before(5)
    assert len(os.listdir("/proc/self/fd")) == before
