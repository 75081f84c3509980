"""The thread that reads logs for a screen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.harness import DEADLINE_S

from ddptop.agent.client.logs.excerpt import LogSource
from ddptop.agent.client.logs.lines import Level
from ddptop.tui.link.reader import LogReader, Picture


class Reading:
    """A reader in its thread, and what it has told."""

    def __init__(self) -> None:
        self.pictures: list[Picture] = []
        self.reader = LogReader(self.pictures.append)
        self.thread = threading.Thread(target=self.reader.run)
        self.thread.start()

    def until(self, condition: Callable[[Picture], object]) -> Picture:
        """Return the newest picture once it meets a condition."""
        deadline = time.monotonic() + DEADLINE_S
        while not (self.pictures and condition(self.pictures[-1])):
            assert time.monotonic() < deadline, self.pictures[-1:]
            time.sleep(0.005)
        return self.pictures[-1]


@pytest.fixture
def reading() -> Iterator[Reading]:
    """A reader, whose thread ends with the test."""
    made = Reading()
    yield made
    made.reader.close()
    made.thread.join(DEADLINE_S)
    assert not made.thread.is_alive()


def texts(picture: Picture) -> list[str]:
    """Return the lines of a picture."""
    return [line.text for line in picture.lines]


def large(path: Path, number: int = 200_000, marked: int = 1000) -> LogSource:
    """Write a log of which only the end is held, with a word in one of its first lines."""
    path.write_text("".join(f"{'needle' if each == marked else 'line'} {each}\n" for each in range(number)))
    return LogSource(str(path), 0)


def test_it_opens_at_the_end_and_follows_it(reading: Reading, tmp_path: Path) -> None:
    """Lines that come have the time at which they were seen; those that were there have none."""
    source = large(tmp_path / "rank-0.log")
    reading.reader.open([source])
    first = reading.until(lambda picture: "line 199999" in texts(picture))
    assert first.at_end
    assert not first.at_begin
    assert {line.at for line in first.lines} == {None}
    begun = time.time()
    with (tmp_path / "rank-0.log").open("a") as log:
        log.write("more\nhalf")
    last = reading.until(lambda picture: "half" in texts(picture)).lines[-2]
    assert last.text == "more"
    assert last.at is not None
    assert begun <= last.at <= time.time()


def test_a_view_that_is_held_reads_nothing_new(reading: Reading, tmp_path: Path) -> None:
    """Until it is resumed; going back in the log works meanwhile."""
    source = large(tmp_path / "rank-0.log")
    reading.reader.open([source])
    reading.until(lambda picture: picture.lines)
    reading.reader.follow_end(following=True, still=True)
    with (tmp_path / "rank-0.log").open("a") as log:
        log.write("more\n")
    length = len(reading.pictures[-1].lines)
    reading.reader.back()
    picture = reading.until(lambda picture: len(picture.lines) > length or not picture.at_end)
    assert "more" not in texts(picture)
    reading.reader.follow_end(following=True, still=False)
    reading.reader.follow()
    reading.until(lambda picture: "more" in texts(picture))


@pytest.mark.parametrize("marked", [3, 100_000, 199_990])
def test_a_search_goes_where_the_text_is(reading: Reading, tmp_path: Path, marked: int) -> None:
    """At the beginning, far away and among what is held; then further, and it says where there is no more."""
    source = large(tmp_path / "rank-0.log", marked=marked)
    reading.reader.open([source])
    reading.reader.search("NEEDLE", None, backwards=True)
    picture = reading.until(lambda picture: picture.found)
    assert [line.text for line in picture.lines if line.found] == [f"needle {marked}"]
    assert picture.progress is None
    assert picture.wanted.text == "NEEDLE"
    for backwards, note in ((True, "not found above"), (False, "not found below")):
        reading.reader.search("needle", picture.found, backwards=backwards)
        assert reading.until(lambda picture, note=note: picture.note == note).found == picture.found  # type: ignore[misc]
    reading.reader.search("line", picture.found, backwards=False)
    picture = reading.until(lambda picture: any(line.found and "line" in line.text for line in picture.lines))
    assert [line.text for line in picture.lines if line.found] == [f"line {marked + 1}"]
    reading.reader.search("", None, backwards=True)
    assert not reading.until(lambda picture: picture.found is None).note


def test_a_search_can_be_cancelled(reading: Reading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells how far it has come, ends at once, and the log is where it was."""
    monkeypatch.setattr("ddptop.tui.link.reader._PROGRESS_S", 0.0)
    source = large(tmp_path / "rank-0.log")
    reading.reader.open([source])
    before = reading.until(lambda picture: picture.lines)
    told = reading.reader._publish

    def publish(picture: Picture) -> None:
        told(picture)
        if picture.progress is not None:
            reading.reader.cancel()

    monkeypatch.setattr(reading.reader, "_publish", publish)
    reading.reader.search("nowhere", None, backwards=True)
    after = reading.until(lambda picture: picture.note == "search cancelled")
    assert texts(after) == texts(before)
    assert next(picture.progress for picture in reading.pictures if picture.progress is not None) < 0.9


def test_a_search_that_was_cancelled_before_it_began_does_not_go_on(reading: Reading, tmp_path: Path) -> None:
    """Keys are pressed faster than a busy thread takes them."""
    source = large(tmp_path / "rank-0.log")
    reading.reader.open([source])
    reading.until(lambda picture: picture.lines)
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> bool:
        begun.set()
        return go_on.wait(DEADLINE_S)

    reading.reader._ask(hold)
    assert begun.wait(DEADLINE_S)
    reading.reader.search("needle", None, backwards=True)
    reading.reader.cancel()
    go_on.set()
    assert reading.until(lambda picture: picture.note).note == "search cancelled"


def test_a_level_reaches_back_through_the_log(reading: Reading, tmp_path: Path) -> None:
    """However long ago the last error was."""
    path = tmp_path / "rank-0.log"
    path.write_text("ERROR early\n" + "plain\n" * 200_000)
    reading.reader.open([LogSource(str(path), 0)])
    reading.until(lambda picture: picture.lines)
    reading.reader.want(Level.ERROR)
    assert texts(reading.until(lambda picture: len(picture.lines) == 1)) == ["ERROR early"]
    reading.reader.want(None)
    reading.until(lambda picture: len(picture.lines) > 1000)


def test_many_logs_are_one(reading: Reading, tmp_path: Path) -> None:
    """With the ranks before each line; what all print stands once; tracebacks stay together."""
    sources = []
    for rank in range(4):
        path = tmp_path / f"rank-{rank}.log"
        path.write_text(f"alike\nValueError: of {rank}\n" if rank < 3 else "alike\n")
        sources.append(LogSource(str(path), rank, host=f"node-{rank // 2}"))
    sources.append(LogSource(str(tmp_path / "missing.log"), 4))
    reading.reader.open(sources)
    picture = reading.until(lambda picture: picture.lines)
    assert [(line.label, line.host, line.text) for line in picture.lines] == [
        ("0-3", "2 hosts", "alike"),
        *((str(rank), f"node-{rank // 2}", f"ValueError: of {rank}") for rank in range(3)),
    ]
    for rank in (3, 1):
        with (tmp_path / f"rank-{rank}.log").open("a") as log:
            log.write("Traceback (most recent call last):\n  File\nOSError: x\n")
    picture = reading.until(lambda picture: "1,3" in {line.label for line in picture.lines})
    assert texts(picture)[-3:] == ["Traceback (most recent call last):", "  File", "OSError: x"]
    reading.reader.search("valueerror: of 1", None, backwards=True)
    assert reading.until(lambda picture: picture.found).found == (1, 6)
    reading.reader.search("nowhere", None, backwards=True)
    reading.until(lambda picture: picture.note == "not found above in what is held of the logs")


def test_a_thousand_logs_hold_no_descriptors_and_little_of_each(reading: Reading, tmp_path: Path) -> None:
    """The lines of all together are bounded, whatever the logs are."""
    (tmp_path / "log").write_text("".join(f"line {number}\n" for number in range(3000)))
    sources = []
    for rank in range(300):
        path = tmp_path / f"rank-{rank}.log"
        path.symlink_to(tmp_path / "log")
        sources.append(LogSource(str(path.resolve()), rank))
    reading.reader.open(sources)
    picture = reading.until(lambda picture: picture.lines)
    assert {line.label for line in picture.lines} == {"0-299"}
    assert len(picture.lines) < 1000
    assert not picture.error


def test_a_line_of_a_mib_leaves_room_for_those_before_it(reading: Reading, tmp_path: Path) -> None:
    """What is held reaches beyond it, or nothing could be scrolled to."""
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"before\n" * 500 + b"x" * (1 << 20) + b"\nafter\n")
    for sources in ([LogSource(str(path), 0)], [LogSource(str(path), rank) for rank in range(4)]):
        reading.reader.open(sources)
        reading.until(lambda picture: texts(picture).count("before") > 20)


def test_no_log_is_told(reading: Reading, tmp_path: Path) -> None:
    """With the reason, until there is one."""
    reading.reader.open([LogSource(str(tmp_path / "rank-0.log"), 0)])
    assert reading.until(lambda picture: picture.error).error == "not written yet"
    (tmp_path / "rank-0.log").write_text("here\n")
    assert reading.until(lambda picture: not picture.error).lines[0].text == "here"
