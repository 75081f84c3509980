"""ASCII in place of other signs, for a terminal that cannot show them.

Screens, bars and plots draw in Unicode and know nothing of this: what they paint, and what a
verb prints, goes through here last, where it is asked for.  Each sign keeps its width in cells; one
that no sign was chosen for becomes its letter without accents, or a question mark.
"""

from __future__ import annotations

import codecs
import locale
import sys
import unicodedata
from typing import Final

from rich.cells import cell_len, get_character_cell_size, set_cell_size

_PAIRS: Final = (
    # Borders, axes.
    ("─╌╍┄┅╴╶▔", "-"),
    ("━═", "="),
    ("│║╎╏┆┇▏▕", "|"),
    # What is chosen has heavy borders.
    ("┃", "#"),
    ("╭╮╰╯┌┐└┘├┤┬┴┼┣┫┳┻╋╔╗╚╝╟╢╞╡╪", "+"),
    ("┏┓┗┛", "#"),
    # The steps of a sparkline, of a gauge and of a half block, from little to much.
    ("▁", "_"), ("▂", "."), ("▃", ":"), ("▄", "-"), ("▅", "="), ("▆", "+"), ("▇", "*"), ("█", "#"),
    ("░", "."), ("▒", ":"), ("▓", "%"), ("▀", "\""), ("▌▍▎", "["), ("▐▊▋▉", "]"), ("▖▗▘▝", "."), ("▙▚▛▜▞▟", "%"),
    # States, in the order of `frame.STATES`; silent is a question mark.
    ("◌", "."), ("●", "o"), ("◐", "%"), ("‖", "="), ("▲", "^"), ("×", "x"), ("◔", "c"), ("✓", "+"), ("✗", "X"),
    ("■", "#"), ("◇", "0"), ("◫", "H"),
    # Marks in a line.
    ("◀←", "<"), ("▶→", ">"), ("↑△", "^"), ("↓▼▽", "v"), ("–—−", "-"), ("…", "~"), ("·•", "."), ("‘’", "'"),
    ("“”", '"'), ("µμ", "u"), ("±", "~"), ("≥", ">"), ("≤", "<"), ("≈", "~"), ("∞", "8"), ("⏎", "J"), ("○", "O"),
    ("°", " "), ("◆", "0"), ("□", "D"), ("✕✖", "x"), ("▸►", ">"), ("◂◄", "<"), ("▴", "^"), ("▾", "v"),
)  # fmt: skip
_DOTS: Final = " ..::**##"
"""The sign for a braille pattern, by the number of its dots."""


class _Table(dict[int, str]):
    """The ASCII for a character, by its code; worked out at its first use."""

    def __missing__(self, code: int) -> str:
        found = self[code] = _ascii(code)
        return found


def _ascii(code: int) -> str:
    char = chr(code)
    if char.isascii():
        return char
    if 0x2800 <= code <= 0x28FF:
        return _DOTS[bin(code - 0x2800).count("1")]
    width = get_character_cell_size(char)
    plain = unicodedata.normalize("NFKD", char).encode("ascii", "ignore").decode()
    return plain if len(plain) == width else "?" * width


TABLE: Final[dict[int, str]] = _Table({ord(char): plain for chars, plain in _PAIRS for char in chars})


def ascii_of(text: str) -> str:
    """Return `text` in ASCII, in as many cells."""
    if text.isascii():
        return text
    # Some signs take another width together than one by one.
    return set_cell_size(text.translate(TABLE), cell_len(text))


def locale_is_unicode() -> bool:
    """Say whether the locale of the terminal is one of UTF-8."""
    # Of the C library, because Python takes UTF-8 for granted in the locale C.
    try:
        return codecs.lookup(locale.nl_langinfo(locale.CODESET)).name == "utf-8"
    except LookupError:
        return False


def let_print(*, ascii_only: bool = False) -> None:
    """Let standard output and error print ASCII in place of each sign that they cannot encode."""
    codecs.register_error("ddptop", _replace)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="ascii" if ascii_only else None, errors="ddptop")  # type: ignore[union-attr]  # both are text files


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return ascii_of(error.object[error.start : error.end]), error.end
