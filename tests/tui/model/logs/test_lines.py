"""What a line of a log says of itself: its rank, its time, its level."""

from __future__ import annotations

import logging
import time
import warnings
from datetime import datetime, timezone

import pytest
from support.values.hostile import PIECES, marks

from ddptop.agent.client.logs.lines import Level, LogLine, read_line
from ddptop.agent.client.logs.logfile import RawLine

pytestmark = pytest.mark.usefixtures("utc")

NOW = datetime(2026, 11, 23, 4, 0, tzinfo=timezone.utc).timestamp()


def read(text: str | bytes, reference: float = NOW, limit: int = 2000) -> LogLine:
    """Return a line as it is read."""
    content = text.encode() if isinstance(text, str) else text
    return read_line(RawLine(0, len(content) + 1, content), reference, limit)


def moment(*fields: int) -> float:
    """Return a moment of UTC."""
    return datetime(*fields, tzinfo=timezone.utc).timestamp()  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("text", "level", "at"),
    [
        ("[W1123 03:50:12.250000000 Gloo.cpp:12] slow", Level.WARNING, moment(2026, 11, 23, 3, 50, 12) + 0.25),
        ("E1123 03:50:12.250000 4711 torch/distributed/elastic/x.py:9] failed", Level.ERROR,
         moment(2026, 11, 23, 3, 50, 12) + 0.25),
        ("W1224 03:50:12 1 x.cc:1] of last year", Level.WARNING, moment(2025, 12, 24, 3, 50, 12)),
        ("2026-11-23 03:50:12,500 INFO trainer: epoch 1", Level.INFO, moment(2026, 11, 23, 3, 50, 12) + 0.5),
        ("2026-11-23 03:50:12,500 - trainer - WARNING - slow", Level.WARNING, moment(2026, 11, 23, 3, 50, 12) + 0.5),
        ("[2026-11-23 03:50:12,500] [ERROR] lost", Level.ERROR, moment(2026, 11, 23, 3, 50, 12) + 0.5),
        ("[INFO|trainer.py:414] 2026-11-23 03:50:12,500 >> Using", Level.INFO, moment(2026, 11, 23, 3, 50, 12) + 0.5),
        ("2026-11-23T03:50:12Z DEBUG x", Level.DEBUG, moment(2026, 11, 23, 3, 50, 12)),
        ("2026-11-23T03:50:12+02:00 x", None, moment(2026, 11, 23, 1, 50, 12)),
        ("WARNING:root:look out", Level.WARNING, None),
        ("CRITICAL the end", Level.ERROR, None),
        ("[rank1]: Traceback (most recent call last):", Level.ERROR, None),
        ("torch.OutOfMemoryError: CUDA out of memory.", Level.ERROR, None),
        ("train.py: error: unrecognized arguments: --x", Level.ERROR, None),
        ("Fatal Python error: Segmentation fault", Level.ERROR, None),
        ("/x/y.py:12: UserWarning: deprecated", Level.WARNING, None),
        ("2026-13-45 99:50:12 INFO no such day", Level.INFO, None),
        ("W9999 03:50:12.25 1 x.cc:1] no such day", Level.WARNING, None),
        ("0.0 error, no warning, INFORMATION", None, None),
        ("loss at 2026-11-23 03:50:12 was 1", None, None),
        ("step 12 loss 0.5", None, None),
        ("error rate 0.1", None, None),
    ],
)  # fmt: skip
def test_time_and_level_are_those_in_the_line(text: str, level: Level | None, at: float | None) -> None:
    """Of the usual forms of torch, torchrun, Python and others; a line that says neither has neither."""
    line = read(text)
    assert (line.level, line.at) == (level, at)
    assert line.text == text


def test_messages_of_pythons_own_logging_are_read(caplog: pytest.LogCaptureFixture) -> None:
    """By its usual formats, whatever they make of a record."""
    record = logging.LogRecord("trainer", logging.WARNING, "x.py", 1, "slow", None, None)
    for form in (None, "%(asctime)s %(levelname)s %(name)s %(message)s", "%(asctime)s [%(levelname)s] %(message)s",
                 "%(levelname)s:%(name)s:%(message)s",
                 "[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"):  # fmt: skip
        line = read(logging.Formatter(form).format(record), time.time())
        assert line.level is (Level.WARNING if form else None), form
        if form and "asctime" in form:
            assert line.at == pytest.approx(record.created, abs=0.002)
    told = warnings.formatwarning("odd", UserWarning, "train.py", 3, "x()").splitlines()
    assert read(told[0]).level is Level.WARNING


@pytest.mark.parametrize(
    ("text", "rank", "own"),
    [("[rank12]: boom", 12, "boom"), ("[default3]:[rank3]: boom", 3, "boom"),
     ("[rank1]:[W1123 03:50:12.1 x.cpp:1] y", 1, ""),
     ("rank 1: boom", None, ""), ("[1] boom", None, "")],
)  # fmt: skip
def test_the_rank_is_the_one_that_torch_puts_before_a_line(text: str, rank: int | None, own: str) -> None:
    """Other texts with numbers in them name nobody."""
    line = read(text)
    assert line.rank == rank
    assert not own or line.own == own


def test_the_same_message_of_two_ranks_says_the_same() -> None:
    """Rank, time and process are no part of what it says."""
    pairs = (
        ("[rank0]:[W1123 03:50:12.25 x.cpp:1] y", "[rank1]:[W1123 03:50:13.5 x.cpp:1] y"),
        ("W1123 03:50:12.250000 4711 x.py:9] y", "W1123 03:50:12.260000 4712 x.py:9] y"),
        ("2026-11-23 03:50:12,500 INFO y", "2026-11-23 03:50:12,501 INFO y"),
    )
    for one, other in pairs:
        assert read(one).said == read(other).said != ""


def test_a_line_is_cut_and_says_so() -> None:
    """Of a line of a MiB the beginning is held, and how much more there is; of a progress bar the last state."""
    line = read("x" * (1 << 20))
    assert len(line.text) == 2000
    assert line.left_out == (1 << 20) - 2000
    assert read("  1%|x\r  2%|xx\r 99%|xxx\r").text == " 99%|xxx"


def test_garbage_is_text() -> None:
    """Bytes of any kind become characters that take cells of a terminal, and nothing else."""
    every = bytes(range(256)) * 9
    for content in (every, "".join(PIECES).encode(), b"\xff\xfe" * 99, b"\x00" * 5000, b"\x1b" * 5000):
        for lead in (b"", b"[rank1]: ", b"W1123 03:50:12.25 1 x.cc:1] ", b"2026-11-23 03:50:12 "):
            for part in (lead + content).split(b"\n"):
                assert not marks(read(part).text)
