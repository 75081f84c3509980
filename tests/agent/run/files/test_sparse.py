"""Logs whose middle is cut out, and what those who read them see."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bases import marked
from support.fakes.events import SaidEvents

from ddptop.agent.client.logs.excerpt import Excerpt, LogSource
from ddptop.agent.client.logs.stream import LogStream
from ddptop.agent.record import logs
from ddptop.agent.record.logs import Logs, level
from ddptop.agent.run.files import sparse

LINES = 20_000


def allocated(path: Path) -> int:
    """Return the bytes that a file takes on the disk."""
    return path.lstat().st_blocks * 512


def written(path: Path) -> int:
    """Fill a log with numbered lines and return its size."""
    path.write_text("".join(f"line {number:06d} of the log\n" for number in range(LINES)))
    return path.stat().st_size


def test_the_middle_goes_and_what_appends_notices_nothing(tmp_path: Path) -> None:
    """Beginning, end, size and offsets stay; the blocks come free; a writer that was there before goes on."""
    log = tmp_path / "rank-0.log"
    size = written(log)
    with log.open("ab", buffering=0) as writer:
        free = sparse.cut(log, 64 << 10)
        writer.write(b"the last line\n")
    assert free > size - (96 << 10)
    assert allocated(log) <= 96 << 10
    assert log.stat().st_size == size + len(b"the last line\n")
    content = log.read_bytes()
    assert content.startswith(b"line 000000 of the log\nline 000001")
    assert content.endswith(f"line {LINES - 1:06d} of the log\nthe last line\n".encode())
    assert sparse.cut(log, size) == 0


def test_both_views_say_where_it_was_cut(tmp_path: Path) -> None:
    """`ddptop logs` and the log screen print one line there, and not one NUL."""
    log = tmp_path / "rank-0.log"
    size = written(log)
    sparse.cut(log, 64 << 10)
    with log.open("ab") as writer:
        writer.write(b"the last line\n")
    source = LogSource(str(log), 0)
    printed = list(LogStream(source).lines())
    (mark,) = [index for index, line in enumerate(printed) if "cut out" in line]
    assert printed[mark].startswith("… ")
    assert f"{(size - (64 << 10)) / 2**20:.1f} MiB" in printed[mark]
    assert printed[0] == "line 000000 of the log"
    assert printed[mark - 2].endswith("of the log")
    assert printed[-2:] == [f"line {LINES - 1:06d} of the log", "the last line"]
    window = Excerpt(source, most_lines=LINES)
    window.open_end()
    while window.back():
        pass
    shown = [line.text for entry in window.entries for line in entry.lines]
    assert shown == printed
    assert not any("\0" in line for line in printed)


def test_only_files_of_the_run_are_cut(tmp_path: Path) -> None:
    """A link, and a file that has another name elsewhere, stay as they are."""
    foreign = tmp_path / "foreign"
    size = written(foreign)
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "link.log").symlink_to(foreign)
    os.link(foreign, folder / "second.log")
    own = folder / "rank-0.log"
    written(own)
    for name in ("link.log", "second.log"):
        with pytest.raises(OSError, match=r"."):
            sparse.cut(folder / name, 8192)
    marked(tmp_path)
    Logs(folder, SaidEvents()).limit_to(128 << 10)
    assert allocated(foreign) >= size
    assert allocated(own) <= 128 << 10


def test_the_largest_logs_are_cut_first(tmp_path: Path) -> None:
    """A rank that prints little keeps all of its log, whatever the others do; the sum keeps within the share."""
    for rank in range(3):
        written(tmp_path / f"rank-{rank}.log")
    (tmp_path / "rank-3.log").write_text("quiet\n" * 2000)
    quiet = (tmp_path / "rank-3.log").read_bytes()
    kept = Logs(marked(tmp_path), SaidEvents())
    kept.limit_to(600 << 10)
    assert sum(allocated(path) for path in tmp_path.iterdir()) <= 600 << 10
    assert (tmp_path / "rank-3.log").read_bytes() == quiet
    assert kept.bytes <= 600 << 10


def test_a_file_system_that_cannot_do_it_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs stay whole, and one event says that they grow on."""

    def refuse(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(sparse, "_punch", refuse)
    said = SaidEvents()
    size = written(tmp_path / "rank-0.log")
    kept = Logs(marked(tmp_path), said)
    kept.limit_to(64 << 10)
    kept.limit_to(64 << 10)
    assert len(said.texts) == 1
    assert "grow on" in said.texts[0]
    assert allocated(tmp_path / "rank-0.log") >= size


def test_a_log_that_cannot_be_cut_keeps_no_other_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are cut, then and later, also as they grow; one event names the one that is not."""
    cut = sparse.cut

    def refuse(path: Path, keep: int) -> int:
        if path.name == "rank-0.log":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return cut(path, keep)

    monkeypatch.setattr(sparse, "cut", refuse)
    for rank in range(3):
        written(tmp_path / f"rank-{rank}.log")
    said = SaidEvents()
    kept = Logs(marked(tmp_path), said)
    for _ in range(2):
        kept.limit_to(128 << 10)
        for rank in (1, 2):
            assert allocated(tmp_path / f"rank-{rank}.log") <= 64 << 10
            with (tmp_path / f"rank-{rank}.log").open("ab") as log:
                log.write(b"more\n" * (100 << 10))
    assert len(said.texts) == 1
    assert "rank-0.log (Permission denied)" in said.texts[0]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50), st.integers(0, 10**10))
def test_the_level_uses_the_share_and_no_more(sizes: list[int], total: int) -> None:
    """Cut down to it, all together take the share, but for what the division leaves."""
    highest = level(sizes, total)
    assert sum(min(size, highest) for size in sizes) <= total
    if sum(sizes) > total:
        assert sum(min(size, highest + 1) for size in sizes) > total - len(sizes)
    assert logs.level([], 5) == 0
