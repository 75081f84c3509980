"""What belongs together of a log, also where several ranks write to it line by line."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from ddptop.agent.client.logs.entries import Entries, Entry
from ddptop.agent.client.logs.lines import Level, read_line
from ddptop.agent.client.logs.logfile import RawLine


def put(text: str, rank: int | None = 0, seen: float | None = None) -> list[Entry]:
    """Return the entries of a log."""
    entries, at, found = Entries(rank), 0, []
    for line in text.splitlines():
        raw = RawLine(at, at + len(line.encode()) + 1, line.encode())
        at = raw.end
        found += entries.add([read_line(raw, 2e9)], seen)
    return found


def texts(entry: Entry) -> list[str]:
    """Return the lines of an entry."""
    return [line.text for line in entry.lines]


def chained() -> str:
    """Return a traceback of a chain of exceptions, as Python prints it."""
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError:
        try:
            dict[str, int]()["third"]
        except KeyError:
            return traceback.format_exc()
    return ""


def test_a_traceback_is_one_entry_with_all_of_its_chain() -> None:
    """From the first line to the last exception; what is printed before and after stands by itself."""
    told = chained()
    assert told.count("Traceback") > 2
    found = put(f"before\n{told}after\n  indented\n")
    assert [texts(each)[0] for each in found] == ["before", told.splitlines()[0], "after", "  indented"]
    assert texts(found[1]) == told.splitlines()
    assert [each.level for each in found] == [None, Level.ERROR, None, None]


def test_tracebacks_of_two_ranks_in_one_log_are_put_apart() -> None:
    """However their lines alternate, each is whole, by the rank that torch writes before the lines."""
    told = chained().splitlines()
    for seed in range(20):
        rng = random.Random(seed)
        left = {rank: [f"[rank{rank}]: {line}".rstrip() for line in [*told, f"end of {rank}"]] for rank in range(3)}
        mixed = []
        while any(left.values()):
            mixed.append(left[rng.choice([rank for rank in left if left[rank]])].pop(0))
        found = put("\n".join(mixed), rank=None)
        errors = [each for each in found if each.level is Level.ERROR]
        assert sorted(each.rank for each in errors) == [0, 1, 2]  # type: ignore[type-var]
        for each in errors:
            assert [line.own.rstrip() for line in each.lines] == [line.rstrip() for line in told]


def test_a_message_in_the_middle_of_a_traceback_is_put_apart() -> None:
    """As another thread logs it; the traceback goes on after it."""
    told = put(
        'Traceback (most recent call last):\n  File "a.py", line 1\n2026-11-23 03:50:12,500 INFO epoch\n'
        "    f()\nOSError: x\n"
    )
    assert [len(each.lines) for each in told] == [4, 1]
    assert [each.level for each in told] == [Level.ERROR, Level.INFO]


def test_a_message_takes_its_own_lines_with_it() -> None:
    """`logging.exception` and warnings stand with the lines that follow; plain output does not."""
    try:
        raise OSError("x")
    except OSError:
        record = logging.LogRecord("a", logging.ERROR, "x.py", 1, "failed", None, sys.exc_info())
    told = logging.Formatter("%(asctime)s %(levelname)s %(message)s").format(record)
    found = put(f"{told}\nx.py:3: UserWarning: odd\n  x()\nplain\n  more of it\n")
    assert [len(each.lines) for each in found] == [len(told.splitlines()), 2, 1, 1]
    assert [each.level for each in found] == [Level.ERROR, Level.WARNING, None, None]


def test_a_crash_told_by_faulthandler_is_one_entry(tmp_path: Path) -> None:
    """With the stacks of all threads."""
    log = tmp_path / "log"
    program = "import faulthandler, threading, time, os; faulthandler.enable(); print('begin', flush=True);"
    program += "threading.Thread(target=time.sleep, args=(9,), daemon=True).start(); os.abort()"
    with log.open("w") as output:
        subprocess.run([sys.executable, "-c", program], stdout=output, stderr=subprocess.STDOUT, check=False)
    begin, crash = put(log.read_text())
    assert texts(begin) == ["begin"]
    assert crash.level is Level.ERROR
    assert sum("most recent call first" in line for line in texts(crash)) == 2


def test_the_message_of_torchs_cpp_is_one_entry() -> None:
    """The reason and the frames below it."""
    found = put("terminate called after throwing an instance of 'c10::Error'\n  what():  broken\n"
                "Exception raised from f at x.cpp:1 (most recent call first):\n"
                "frame #0: a + 0x1\nframe #1: b\nnext\n")  # fmt: skip
    assert [len(each.lines) for each in found] == [5, 1]


def test_an_endless_entry_is_bounded() -> None:
    """What goes on without end is cut into several of the same level."""
    found = put("Traceback (most recent call last):\n" + "  x\n" * 2000)
    assert len(found) > 4
    assert {each.level for each in found} == {Level.ERROR}
    assert sum(len(each.lines) for each in found) == 2001


def test_an_entry_that_was_passed_on_does_not_change() -> None:
    """What comes later of it is an entry of the same level and rank."""
    entries = Entries(3)

    def add(text: str) -> list[Entry]:
        return entries.add([read_line(RawLine(0, 1, text.encode()), 2e9)], 5.0)

    (first,) = add("Traceback (most recent call last):")
    entries.close([first])
    (second,) = add("  File")
    assert add("OSError: x") == []
    assert (len(first.lines), len(second.lines)) == (1, 2)
    assert (second.level, second.rank, second.at) == (Level.ERROR, 3, 5.0)


@pytest.mark.parametrize("seen", [None, 7.0])
def test_the_time_is_that_in_the_line_or_the_moment_it_was_seen(seen: float | None) -> None:
    """A line with neither has no time, and keeps the place after the one before it."""
    stamped, plain = put("2026-11-23T03:50:12Z INFO a\nplain\n", seen=seen)
    assert stamped.at == 1795405812.0
    assert plain.at == seen
    assert plain.order == stamped.order == ((0, 1795405812.0) if seen is None else (1, 7.0))
