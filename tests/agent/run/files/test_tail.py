"""The end of a log, and a log that is followed while it grows."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ddptop.agent.run.files import sparse, tail
from ddptop.tui.cli import logs


def test_a_line_that_comes_in_pieces_is_one(tmp_path: Path) -> None:
    """A line is given when it is whole; what is written of the next one can be seen."""
    log = tmp_path / "rank-0.log"
    follower = tail.Follower(log)
    assert list(logs.lines(follower, "")) == []
    with log.open("ab", buffering=0) as writer:
        writer.write(b"half")
        assert list(logs.lines(follower, "")) == []
        writer.write(b" a line\nmore")
        assert list(logs.lines(follower, "")) == ["half a line"]
    assert follower.rest == b"more"


def test_a_line_without_an_end_comes_in_pieces(tmp_path: Path) -> None:
    """No log fills the memory: of a line of a MiB no more than a chunk is held."""
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"x" * (1 << 20) + b"\nend\n")
    pieces = list(logs.lines(tail.Follower(log), ""))
    assert max(map(len, pieces)) <= logs.LINE_BYTES
    assert "".join(pieces) == "x" * (1 << 20) + "end"


def test_another_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    """A log that is cut short, or replaced by another file, is begun anew; nothing of the old one is mixed in."""
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"first\nhalf")
    follower = tail.Follower(log)
    assert follower.read(100) == [b"first"]
    log.write_bytes(b"short\n")
    assert follower.read(100) == [b"short"]
    other = tmp_path / "other"
    other.write_bytes(b"a longer line than before\n")
    other.replace(log)
    assert follower.read(100) == [b"a longer line than before"]
    assert follower.read(100) is None
    assert follower.begun == 3


def test_a_hole_at_the_end_is_told_with_what_follows(tmp_path: Path) -> None:
    """The bytes that are cut out are told once, also where nothing came after them for a while."""
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"")
    os.truncate(log, 1 << 20)
    follower = tail.Follower(log)
    assert follower.read(1 << 16) is None
    with log.open("ab") as writer:
        writer.write(b"after\n")
    lines = follower.read(1 << 16)
    assert lines is not None
    assert len(lines) == 2
    assert b"cut out" in lines[0]
    assert lines[1] == b"after"


def test_half_a_log_is_not_told_as_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is missing is empty; one that fails while it is read is an error."""
    log = tmp_path / "rank-0.log"
    follower = tail.Follower(log)
    assert list(logs.lines(follower, "")) == []
    log.write_bytes(b"first\n")
    assert list(logs.lines(follower, "")) == ["first"]

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sparse, "read", fail)
    with pytest.raises(OSError, match="error"):
        list(logs.lines(follower, ""))


def test_the_end_of_a_log_is_text(tmp_path: Path) -> None:
    """A character that is cut through is told as such; where there is no plain file, there is no text."""
    log = tmp_path / "rank-0.log"
    log.write_text("first ü\nlast", encoding="utf-8")
    assert tail.end(log) == "first ü\nlast"
    assert tail.end(log, 6) == "\N{REPLACEMENT CHARACTER}\nlast"
    link = tmp_path / "link.log"
    link.symlink_to(log)
    assert tail.end(link) == ""
    assert tail.end(tmp_path) == ""
    assert tail.end(tmp_path / "none") == ""
