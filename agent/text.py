"""Text of unknown origin, made fit for a terminal, a record or a log.

Text that comes over a socket, out of a file, a log or an environment may hold escape sequences and
marks that reverse the direction of writing, and may be of any length. It is cleaned where it enters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

_KIB: Final = 1024.0

# CSI; OSC, DCS, SOS, PM and APC up to their terminator; charset choices; any other two-character escape.
# A string without a terminator ends where the next sequence begins: a search beyond that would take quadratic
# time for a text of introducers only.
# C1 forms (one byte each in Latin-1) are matched too: some terminals obey them.
_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)


def clean(text: str, limit: int = 2000) -> str:
    """Return `text` as one line without escape sequences, control, format or combining characters.

    Spaces stay, a tab becomes four of them; the line is cut off after `limit` characters. Each character
    of the result takes one cell or two on every terminal, whatever its neighbors are.
    """
    text = text[: limit * 4]
    if "\x1b" in text or not text.isascii():
        text = _ESCAPES.sub("", text)
    text = text.replace("\t", "    ")
    if not text.isprintable():
        text = "".join(_visible(char) for char in text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text).translate(_CELLS)
    return text[:limit]


def clean_line(text: str, limit: int = 300) -> str:
    """Return `text` clean and with single spaces, with an ellipsis at the end where it is cut to `limit` characters."""
    line = " ".join(clean(text, limit * 4).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def shorten(text: str, limit: int) -> str:
    """Return `text` in at most `limit` bytes of UTF-8; a note of the bytes cut out replaces the middle of a longer one.

    Where the limit has no room for the note, only the beginning stays. A lone surrogate, which UTF-8 cannot
    encode, becomes a question mark.
    """
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode()
    # The note of all bytes is the longest that can be needed.
    half = (limit - len(_cut(len(raw)).encode())) // 2
    if half < 0:
        return raw[:limit].decode(errors="ignore")
    # A character at the edge of the cut goes with it.
    head, tail = raw[:half].decode(errors="ignore"), raw[len(raw) - half :].decode(errors="ignore")
    return head + _cut(len(raw) - len(head.encode()) - len(tail.encode())) + tail


def plural(number: int, noun: str) -> str:
    """Return `1 rank`, `4 ranks`, `1,024 ranks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def in_ms(value: float) -> str:
    """Return `31 ms`, `4.2 ms`."""
    return f"{value:,.0f} ms" if value >= 9.5 else f"{value:.1f} ms"


def span(seconds: float) -> str:
    """Return a time of some length, roughly: `12 s`, `3 min`, `5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def size(value: int) -> str:
    """Return `64 KiB`, `812 MiB`, `1.23 GiB`, `61.4 GiB`: a number of at most four characters, and its unit."""
    if value < 999.5:
        return f"{value} B"
    if value / _KIB < 999.5:
        return f"{value / _KIB:.0f} KiB"
    mib = value / _KIB**2
    if mib < 999.5:
        return f"{mib:.0f} MiB"
    gib = mib / _KIB
    number, unit = (gib, "GiB") if gib < 999.5 else (gib / _KIB, "TiB")
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f} {unit}"


def _cut(missing: int) -> str:
    return f" [… {missing:,} bytes cut out …] "


class _Cells(dict[int, "int | str | None"]):
    """The replacement of each character in a grid of cells, computed at first use; None removes the character."""

    def __missing__(self, code: int) -> int | str | None:
        char = chr(code)
        found: int | str | None = code
        # Terminals disagree on the cell of a combining mark, and on whether a part of a syllable joins the one before.
        if unicodedata.category(char)[0] == "M" or any(first <= code <= last for first, last in _JOINING):
            found = None
        elif any(first <= code <= last for first, last in _WIDENED):
            found = "?"
        if len(self) < _MOST_KNOWN:
            self[code] = found
        return found


_JOINING: Final = (
    # Parts and fillers of Korean syllables; skin tones; letters of which two make a flag.
    (0x115F, 0x11FF), (0x3164, 0x3164), (0xD7B0, 0xD7FF), (0xFFA0, 0xFFA0), (0x1F1E6, 0x1F1FF), (0x1F3FB, 0x1F3FF),
)  # fmt: skip
_WIDENED: Final = ((0x2630, 0x2637), (0x268A, 0x268F), (0x4DC0, 0x4DFF), (0x1D300, 0x1D376))
"""Symbols of one cell before Unicode 16 and of two since."""
_MOST_KNOWN: Final = 65_536
_CELLS: Final = _Cells()


class Complaint(Exception):
    """An error as one line for the user: what is wrong and what to do. The line is clean, whatever it quotes."""

    def __init__(self, text: object = "") -> None:
        super().__init__(clean(str(text)))


def _visible(char: str) -> str:
    if char.isprintable():
        return char
    return " " if char.isspace() else ""


_MOST_SPANS: Final = 8


def ranks_in_spans(ranks: Iterable[int]) -> str:
    """Return `rank 4`, or `ranks 4-7, 12`; of many spans the first and how many more."""
    numbers = set(ranks)
    texts = spans(numbers)
    single = len(numbers) == 1
    more = f" and {len(texts) - _MOST_SPANS} more" if len(texts) > _MOST_SPANS else ""
    return f"rank{'' if single else 's'} {', '.join(texts[:_MOST_SPANS])}{more}"


def spans(numbers: Iterable[int]) -> list[str]:
    """Return numbers in order, those that follow each other as one span: `4-7`, `12`."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in found]


MASK: Final = "***"
"""Replaces a secret value."""
# Patterns as text: they are compiled once a secret is looked for, which few programs do.
_SECRET: Final = (
    # Words that only look alike are left out: tokenizer, keyboard, author.
    r"SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIAL|TOKEN(?!I[ZS])|AUTH(?!OR(?!I[ZS]))|KEY(?!BOARD|WORD|FRAME|POINT)"
)
_ASSIGNED: Final = r"(?P<name>[^=\s]+)=(?P<value>.*)"


def is_secret(name: str, value: str = "") -> bool:
    """Say whether a variable or an option holds a secret, by its name."""
    if not re.search(_SECRET, name, re.IGNORECASE):
        return False
    # `--max-tokens 512`: a number of tokens is no secret.
    rest = re.sub("TOKENS", "", name, flags=re.IGNORECASE)
    if rest == name or re.search(_SECRET, rest, re.IGNORECASE):
        return True
    return not re.fullmatch(r"[0-9]{1,9}[kKmMbB]?", value)


def masked_words(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words of a command line with a mask for each secret: `--token ***`, `--api-key=***`, `API_KEY=***`."""
    shown: list[str] = []
    option = ""
    for word in words:
        assigned = re.fullmatch(_ASSIGNED, word, re.DOTALL)
        if option and not word.startswith("-") and is_secret(option, word):
            shown.append(MASK)
        elif assigned and is_secret(assigned["name"].rpartition("/")[2], assigned["value"]):
            shown.append(f"{assigned['name']}={MASK}")
        else:
            shown.append(word)
        option = word if word.startswith("-") and "=" not in word else ""
    return tuple(shown)
