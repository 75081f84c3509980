"""One line of a log: the rank that it names, its time and its level, each only where the line itself says so."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import IntEnum
from typing import Final

from ddptop.agent.client.logs.logfile import RawLine
from ddptop.agent.text import clean

LONGEST: Final = 2000
"""Characters of a line that are held for a screen."""
_DAY_S: Final = 86_400.0


class Level(IntEnum):
    """How much a line matters, by its own words; a line without such words has no level."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line, clean and cut to a length."""

    begin: int
    """Offset in its log."""
    end: int
    text: str
    left_out: int = 0
    """Characters, about, that the line is longer than `text`."""
    rank: int | None = None
    """The rank that the line names as its own, as in `[rank1]: …`; of `[default1]: …` the local rank."""
    lead: int = 0
    """Characters of the text that name the rank."""
    body: int = 0
    """Characters of the text before what it says: rank, time and process."""
    level: Level | None = None
    at: float | None = None
    """The time in the line, in seconds since the epoch."""

    @property
    def said(self) -> str:
        """The text without the rank, time and process in front of it."""
        return self.text[self.body :]

    @property
    def own(self) -> str:
        """The text without the rank in front of it."""
        return self.text[self.lead :]


_WORDS: Final = {
    "TRACE": Level.DEBUG, "DEBUG": Level.DEBUG, "INFO": Level.INFO, "NOTICE": Level.INFO, "WARN": Level.WARNING,
    "WARNING": Level.WARNING, "ERROR": Level.ERROR, "EXCEPTION": Level.ERROR, "CRITICAL": Level.ERROR,
    "FATAL": Level.ERROR,
}  # fmt: skip
_LETTERS: Final = {
    "V": Level.DEBUG, "D": Level.DEBUG, "I": Level.INFO, "W": Level.WARNING, "E": Level.ERROR, "F": Level.ERROR,
    "C": Level.ERROR,
}  # fmt: skip
_WORD: Final = "TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|EXCEPTION|CRITICAL|FATAL"
_RANK: Final = re.compile(r"(?:\[(?:rank|default)(\d{1,5})\]:? ?)+")
"""The prefix that torch puts before the exception of a rank, and torchrun before each line of one."""
_GLOG: Final = re.compile(r"\[?([VDIWEFC])(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(\.\d{1,9})? +(?:\d+ )?")
"""The beginning of a line of torch's C++, `[W1123 03:50:12.123456789 ProcessGroup.cpp:12] …`, and of torchrun's log."""
_STAMP: Final = re.compile(
    rf"(?:[\[(<]?(?:{_WORD})\b[^\s\d]\S{{0,60}} *|[\[(<]?(?:{_WORD})[\])>]?:? +|[\[(<])?"
    r"(\d{4})-(\d\d)-(\d\d)[T ,]+(\d\d):(\d\d):(\d\d)([.,]\d{1,9})?(Z| ?[+-]\d\d:?\d\d)?\b[\])>]?[ :,|-]*"
)
"""The time of Python's logging, and ISO 8601, at the beginning of a line or after its level."""
_LEVEL: Final = re.compile(rf"(?:^|(?<=[\s\[\](<|:\-]))(?:{_WORD})\b(?=[\s\])>|:,-]|$)")
_LEVEL_FIRST: Final = re.compile(rf"[\[(<]?({_WORD})\b(?:[\])>:|]|\s|$)")
"""A level at the beginning of a line without a time."""
_WARNED: Final = re.compile(r"\S{1,300}:\d+: \w*Warning: |(?:[\w.]+\.)?[A-Z]\w*Warning(?::|$)|[Ww]arning: ")
"""A warning of Python's own module."""
_FAILED: Final = re.compile(
    r"(?: {2}\+ )?(?:Exception Group )?Traceback \(most recent call (?:last|first)\)|Fatal Python error: "
    r"|terminate called |(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Group)(?:: |:?$)"
    r"|(?:[\w./-]{1,60}: )?(?:[Ff]atal |)[Ee]rror: |[Ff]atal: "
)
"""The beginning of a traceback, its last line, and what programs write before the reason for their end."""
_HEADER: Final = 100
"""Characters after the time in which a level is looked for."""


def read_line(raw: RawLine, reference: float, limit: int = LONGEST) -> LogLine:
    """Return what a line says.

    Args:
        raw: the line.
        reference: a time, in seconds since the epoch, not before the line was written, such as that of the last change
            to the log: the date of a line may be without a year.
        limit: characters of the text that are held.
    """
    text, left_out = read_text(raw, limit)
    found = _RANK.match(text)
    rank, lead = (int(found[1]), found.end()) if found else (None, 0)
    level, at, body = _header(text, lead, reference)
    return LogLine(raw.begin, raw.end, text, left_out, rank, lead, body, level, at)


def read_text(raw: RawLine, limit: int) -> tuple[str, int]:
    """Return at most so many characters of a line, clean, and about how many it has beyond them."""
    written = raw.content.rstrip(b"\r")
    if b"\r" in written:
        # A carriage return begins the line anew, as progress bars use it; the terminal would show the last.
        written = written.rpartition(b"\r")[2]
    # A character is at most four bytes, and escape sequences may stand among them.
    text = clean(written[: limit * 8].decode("utf-8", "replace"), limit)
    return text, max(0, len(written) - len(text.encode("utf-8", "replace"))) if len(text) >= limit else 0


def _header(text: str, lead: int, reference: float) -> tuple[Level | None, float | None, int]:
    """Return the level and time of a line, and where in it begins what it says."""
    # Few lines begin with any of these, and a failed match costs little.
    if stamped := _GLOG.match(text, lead):
        letter, *date = stamped.groups()
        return _LETTERS[letter], _latest((int(date[0]), int(date[1])), *_clock(date[2:]), reference), stamped.end()
    if stamped := _STAMP.match(text, lead):
        at = _moment(stamped)
        end = stamped.end()
        word = _LEVEL.search(text, lead, stamped.start(1)) or _LEVEL.search(text, end, end + _HEADER)
        return (_WORDS[word[0]] if word else None), at, end
    if first := _LEVEL_FIRST.match(text, lead):
        return _WORDS[first[1]], None, lead
    if _FAILED.match(text, lead):
        return Level.ERROR, None, lead
    if _WARNED.match(text, lead):
        return Level.WARNING, None, lead
    return None, None, lead


def _clock(fields: list[str]) -> tuple[int, float]:
    """Return the seconds since midnight, and the part of a second."""
    hour, minute, second, part = fields
    return int(hour) * 3600 + int(minute) * 60 + int(second), float(f"0{part}") if part else 0.0


def _latest(day: tuple[int, int], seconds: int, part: float, reference: float) -> float | None:
    """Return the last such moment that is not after the reference: the line does not say its year."""
    try:
        year = time.localtime(reference).tm_year
    except (OverflowError, OSError, ValueError):
        return None
    for each in (year, year - 1):
        midnight = _midnight(each, *day)
        # A day more, because the clocks of two machines, or their zones, may differ.
        if midnight is not None and midnight + seconds <= reference + _DAY_S:
            return midnight + seconds + part
    return None


def _moment(found: re.Match[str]) -> float | None:
    year, month, day, hour, minute, second, part, zone = found.groups()
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second)
    fraction = float(f"0.{part[1:]}") if part else 0.0
    if zone is None:
        midnight = _midnight(int(year), int(month), int(day))
        return None if midnight is None else midnight + seconds + fraction
    try:
        moment = datetime(int(year), int(month), int(day), tzinfo=_zone(zone)) + timedelta(seconds=seconds)
        return moment.timestamp() + fraction
    except (ValueError, OverflowError):
        return None


def _zone(text: str) -> timezone:
    if text == "Z":
        return timezone.utc
    digits = text.replace(":", "").strip()
    away = timedelta(hours=int(digits[1:3]), minutes=int(digits[3:]))
    return timezone(-away if digits[0] == "-" else away)


def _midnight(year: int, month: int, day: int) -> float | None:
    """Return the beginning of a day in the zone of this machine; a change of the clock on that day is not regarded."""
    try:
        return datetime(year, month, day).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
