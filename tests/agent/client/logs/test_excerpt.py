"""The part of a log that is held, moved through all of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddptop.agent.client.logs.entries import Entry
from ddptop.agent.client.logs.excerpt import Excerpt, LogSource
from ddptop.agent.client.logs.lines import Level
from ddptop.agent.client.logs.matching import Wanted

TRACEBACK = (
    "Traceback (most recent call last):\n" + "".join(f'  File "{n}.py", line 1\n' for n in range(20)) + "OSError: x\n"
)
LINES = 20_000


def texts(entries: list[Entry]) -> list[str]:
    """Return the lines of entries."""
    return [line.text for entry in entries for line in entry.lines]


def numbered(path: Path) -> Excerpt:
    """Return a window on a log of numbered lines, which holds a tenth of them."""
    path.write_text("".join(f"line {number:06d}\n" for number in range(LINES)))
    return Excerpt(LogSource(str(path), 0), most_lines=LINES // 10, stretch=4096)


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    """Half lines, progress bars, truncation and replacement are all followed; there may be no log yet."""
    path = tmp_path / "rank-0.log"
    window = Excerpt(LogSource(str(path), 0), 100)
    window.open_end()
    assert window.error == "not written yet"
    path.write_bytes(b"one\ntw")
    assert window.grow()
    assert window.error is None
    assert texts(window.entries) == ["one"]
    assert window.rest is not None
    assert window.rest.text == "tw"
    with path.open("ab") as file:
        file.write("o\nbar 1%\rbar 2%\r\n\x1b[31mred\x1b[0m ünï".encode()[:-1])
    assert window.grow()
    assert texts(window.entries) == ["one", "two", "bar 2%"]
    assert window.rest.text.startswith("red ün")
    assert not window.grow()
    path.write_bytes(b"anew\n")
    assert window.grow()
    assert texts(window.entries) == ["anew"]
    path.unlink()
    path.write_bytes(b"".join(b"%d\n" % number for number in range(60_000)))
    while window.grow():
        pass
    assert texts(window.entries) == [str(number) for number in range(59_900, 60_000)]


def test_a_log_that_is_no_file_is_said(tmp_path: Path) -> None:
    """A folder in place of a log is an error to show, not to raise."""
    window = Excerpt(LogSource(str(tmp_path)))
    window.open_end()
    assert window.error
    assert not window.entries


def test_it_moves_through_all_of_the_log_and_back(tmp_path: Path) -> None:
    """Every line is met once in its place, in both directions, and never more are held than may be."""
    window = numbered(tmp_path / "rank-0.log")
    expected = [f"line {number:06d}" for number in range(LINES)]
    window.open_end()
    assert window.at_end
    assert texts(window.entries) == expected[-len(window.entries) :]
    while window.begin:
        assert window.back()
        held = texts(window.entries)
        assert len(held) <= LINES // 10
        first = int(held[0].split()[1])
        assert held == expected[first : first + len(held)]
    assert held[0] == expected[0]
    assert not window.at_end
    assert not window.back()
    while window.on() and not window.at_end:
        held = texts(window.entries)
        assert len(held) <= LINES // 10
        first = int(held[0].split()[1])
        assert held == expected[first : first + len(held)]
    assert texts(window.entries)[-1] == expected[-1]


def test_what_is_scrolled_to_does_not_go(tmp_path: Path) -> None:
    """Where the end is not in sight, lines are added until there is room for no more; those in front stay."""
    path = tmp_path / "rank-0.log"
    window = numbered(path)
    window.open_end()
    before = texts(window.entries)
    with path.open("a") as log:
        log.write("".join(f"more {number}\n" for number in range(LINES)))
    while window.at_end and window.grow(trim=False):
        pass
    assert texts(window.entries)[: len(before)] == before
    assert not window.at_end
    assert len(window.entries) < LINES


def test_an_entry_that_begins_before_what_is_held_becomes_whole(tmp_path: Path) -> None:
    """Also where only errors are wanted, and its other lines have no level: wherever a stretch ends in it."""
    path = tmp_path / "rank-0.log"
    for padding in range(0, 400, 37):
        path.write_text("x" * padding + "\n" + ("plain\n" * 20 + TRACEBACK) * 5 + "plain\n" * 200)
        for wanted in (Wanted(), Wanted(Level.ERROR)):
            window = Excerpt(LogSource(str(path), 0), 5000, 512)
            window.open_end(wanted, most=512)
            while window.back():
                pass
            errors = [texts([entry]) for entry in window.entries if entry.level is Level.ERROR]
            assert errors == [TRACEBACK.splitlines()] * 5
            window.open_at(0, wanted)
            while not window.at_end and window.on():
                pass
            errors = [texts([entry]) for entry in window.entries if entry.level is Level.ERROR]
            assert errors == [TRACEBACK.splitlines()] * 5


def test_only_what_is_wanted_is_held(tmp_path: Path) -> None:
    """It reaches back through all of the log for it; what is added later is judged, too."""
    path = tmp_path / "rank-0.log"
    path.write_text("".join("ERROR x\n" if number % 5000 == 3 else "plain\n" for number in range(LINES)))
    window = Excerpt(LogSource(str(path), 0), stretch=4096)
    window.open_end(Wanted(Level.ERROR), most=4096)
    assert texts(window.entries) == ["ERROR x"] * 4
    assert window.begin == 0
    with path.open("a") as log:
        log.write("plain\nCRITICAL y\n")
    window.grow()
    assert texts(window.entries)[-1] == "CRITICAL y"


def test_reading_back_for_what_is_wanted_can_be_ended(tmp_path: Path) -> None:
    """After each stretch; what was passed over by then is not read again."""
    window = numbered(tmp_path / "rank-0.log")
    reached: list[int] = []

    def going(offset: int) -> bool:
        reached.append(offset)
        return len(reached) < 3

    window.open_end(Wanted(Level.ERROR), 4096, going)
    assert len(reached) == 3
    assert 0 < window.begin == reached[-1] < reached[0]


@pytest.mark.parametrize("backwards", [True, False])
def test_a_search_finds_the_next_line(tmp_path: Path, backwards: bool) -> None:
    """In either direction from any line, and none beyond the last; it can be ended."""
    path = tmp_path / "rank-0.log"
    window = numbered(path)
    wanted = Wanted(text="LINE 0")
    offset = os.path.getsize(path) if backwards else 0
    found = window.find(Wanted(text="LINE 012345"), offset, backwards=backwards, going=lambda _: True)
    assert found == 12345 * len("line 000000\n")
    following = window.find(wanted, found, backwards=backwards, going=lambda _: True)
    assert following == found + (-12 if backwards else 0)
    assert window.find(Wanted(text="nowhere"), offset, backwards=backwards, going=lambda _: True) is None
    assert window.find(wanted, offset, backwards=backwards, going=lambda _: False) is None
