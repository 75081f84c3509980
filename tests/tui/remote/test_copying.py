"""What is sent of a run's files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from ddptop.agent import wire
from ddptop.agent.observer.record import recording
from ddptop.tui.remote import copying
from ddptop.tui.remote.messages import Piece


def _written(pieces: Iterable[Piece], file: Path) -> Path:
    with file.open("wb") as target:
        for piece in pieces:
            target.seek(piece.offset)
            target.write(piece.content)
    return file


def _recorded(folder: Path) -> Path:
    file = folder / "run.db"
    connection = recording.open_file(file)
    for number in range(3):
        event = wire.Event(number, f"event {number}", None, "info")
        connection.execute(*recording.row(event, wire.encode(event)))
    connection.execute(recording.INSERT_STEPS, (0, 0, 1, 2, b"steps"))
    connection.commit()
    # As of a run that goes on: nothing is written back into the file itself.
    connection.close()
    return file


def _steps(file: Path) -> int:
    connection = sqlite3.connect(file)
    (found,) = connection.execute("SELECT count(*) FROM steps").fetchone()
    connection.close()
    return int(found)


def test_of_a_live_run_all_but_the_steps_is_sent(tmp_path: Path) -> None:
    """The events of the copy are those of the file, in their order, and it can be read as any recording."""
    file = _recorded(tmp_path)
    copy = _written(copying.database(file, whole=False), tmp_path / "copy.db")
    assert list(recording.read_events(copy)) == list(recording.read_events(file))
    assert len(list(recording.read_events(copy))) == 3
    assert (_steps(file), _steps(copy)) == (1, 0)


def test_of_an_ended_run_all_is_sent(tmp_path: Path) -> None:
    """The steps, too."""
    copy = _written(copying.database(_recorded(tmp_path), whole=True), tmp_path / "copy.db")
    assert _steps(copy) == 1


def test_a_file_that_is_none_is_not_sent(tmp_path: Path) -> None:
    """Neither a link nor garbage comes out as a database."""
    (tmp_path / "link").symlink_to(_recorded(tmp_path))
    (tmp_path / "garbage").write_bytes(b"x" * 10_000)
    for name in ("link", "garbage", "absent"):
        assert not list(copying.database(tmp_path / name, whole=True))


def test_logs_are_sent_from_their_ends_on_and_then_what_is_added(tmp_path: Path) -> None:
    """What is copied is at the same offsets as in the file."""
    file = tmp_path / "rank-0.log"
    file.write_bytes(b"line\n" * 200_000)
    tails = copying.Tails(tmp_path, ["rank-0.log", "rank-1.log"])
    first = list(tails.added())
    assert first[0].anew
    assert first[0].name == "logs/rank-0.log"
    sent = sum(len(piece.content) for piece in first)
    assert 200_000 < sent < 300_000
    copy = _written(first, tmp_path / "copy").read_bytes()
    assert len(copy) == 1_000_000
    assert copy[-sent:] == file.read_bytes()[-sent:]
    assert not list(tails.added())
    with file.open("ab") as log:
        log.write(b"more\n")
    assert [(piece.offset, piece.content, piece.anew) for piece in tails.added()] == [(1_000_000, b"more\n", False)]


def test_a_flood_is_left_out_in_the_middle(tmp_path: Path) -> None:
    """Of what is written faster than it can be sent the end is sent."""
    file = tmp_path / "rank-0.log"
    file.write_bytes(b"")
    tails = copying.Tails(tmp_path, ["rank-0.log"])
    list(tails.added())
    with file.open("ab") as log:
        log.write(b"x" * 10_000_000)
    pieces = list(tails.added())
    assert sum(len(piece.content) for piece in pieces) < 1 << 20
    assert pieces[-1].offset + len(pieces[-1].content) == 10_000_000
