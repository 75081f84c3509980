"""Text of unknown origin, made fit for a terminal, a record or a log.

Whatever comes over a socket, out of a file, a log or an environment may hold escape sequences,
marks that turn the direction of text around, or no end. It is cleaned where it enters.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

# CSI; OSC, DCS, SOS, PM and APC up to their terminator; charset choices; any other two-character escape.
# C1 forms (one byte each in Latin-1) are matched too: some terminals obey them.
_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)"
    r"|\x1b[ -/]*[0-~]?"
)


def clean(text: str, limit: int = 2000) -> str:
    """Return `text` as one line without escape sequences, control, format or combining characters.

    Its own spaces are kept, a tab becomes four; what is longer than `limit` characters is cut off.
    """
    text = text[: limit * 4]
    if "\x1b" in text or not text.isascii():
        text = _ESCAPES.sub("", text)
    text = text.replace("\t", "    ")
    if not text.isprintable():
        text = "".join(_visible(char) for char in text)
    if not text.isascii():
        # Terminals disagree on where a combining mark goes; without them every cell is certain.
        text = "".join(char for char in unicodedata.normalize("NFC", text) if not unicodedata.combining(char))
    return text[:limit]


def clean_line(text: str, limit: int = 300) -> str:
    """Return `text` clean and with single spaces, an ellipsis where it was cut to `limit` characters."""
    line = " ".join(clean(text, limit * 4).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def shorten(text: str, limit: int) -> str:
    """Return `text` in at most `limit` bytes of UTF-8, its middle cut out and the cut told.

    A lone surrogate, which no encoding takes, becomes a question mark.
    """
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode()
    mark = f" [… {len(raw) - limit:,} bytes cut out …] "
    head = max(0, (limit - len(mark.encode()) - 16) // 2)
    tail = raw[len(raw) - head :] if head else b""
    return (raw[:head].decode(errors="ignore") + mark + tail.decode(errors="ignore"))[:limit]


def _visible(char: str) -> str:
    if char.isprintable():
        return char
    return " " if char.isspace() else ""
