"""Steps and losses in the lines of a log, as tqdm, the usual trainers and the user's own patterns have them.

A log is hostile: a line is cut, only the end of what is new is read, and patterns of the user's are tried in a process
of their own, which is ended where one takes too long: Python cannot interrupt a search.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ddptop.agent.run.files import tail
from ddptop.agent.text import clean, clean_line

_LONGEST: Final = 4096
"""Characters of a line that are looked at."""
_NEWEST: Final = 64 << 10
"""Bytes at the end of what is new that are read, about."""
_PATIENCE_S: Final = 2.0
"""Seconds that a search by the user's patterns may take, the start of Python included."""
_MOST_TRIED: Final = 100
"""Lines at most that one such search is for."""
_NUMBER: Final = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan\b|inf\b)"
_BAR: Final = re.compile(
    r"^(?!.{0,80}(?i:valid|eval|test|predict|sanity|load|fetch|map|token|generat|download))"
    r"[^|]{0,120}?\d{1,3}%\|[^|]{0,200}\| *(\d{1,18})/(\d{1,18}) "
    r"\[[^\]]{0,40}?(?:it/s|s/it|step/s|s/step|batch/s|s/batch)"
)
"""A bar of tqdm, which HF and Lightning have, too: `37%|███   | 37/100 [00:12<00:21,  3.01it/s]`. Bars of other things
than the training say so, or have other units."""
_BETWEEN: Final = r"[\s:=#\[]{0,12}"
_STEP: Final = re.compile(
    rf"\b(?:(?:global[ _-]?)?step|iter(?:ation)?)\b{_BETWEEN}(\d{{1,18}})(?: {{0,8}}/ {{0,8}}(\d{{1,18}}))?",
    re.IGNORECASE,
)
_EPOCH_BATCH: Final = re.compile(r"Epoch:? {0,2}\[\d{1,9}\] {0,2}\[ {0,9}(\d{1,18})/(\d{1,18})\]")
"""Torch's examples: `Epoch: [0][  10/1251]`."""
_LOSS: Final = re.compile(
    rf"(\w{{1,12}}[ _-])?loss\b['\"]?[\s:=]{{1,4}}(?:tensor\()?['\"]?({_NUMBER})", re.IGNORECASE | re.ASCII
)
_OTHER_LOSS: Final = re.compile(r"val|eval|test|dev|aux", re.IGNORECASE)
_OF_TRAINING: Final = re.compile(r"^(?:\{|Train Epoch)")
"""Lines with a loss and no step: the dictionaries of HF, `Train Epoch: 1 [640/60000 (1%)]`."""


class Named(NamedTuple):
    """What a line names; None for what it does not."""

    step: int | None = None
    total: int | None = None
    loss: float | None = None


def named(line: str) -> Named:
    """Return the step and the loss that a line of a log names."""
    line = clean(line[:_LONGEST], _LONGEST).strip()
    if (bar := _BAR.search(line)) is not None:
        return Named(int(bar[1]), int(bar[2]), _loss(line))
    found = _STEP.search(line) or _EPOCH_BATCH.search(line)
    if found is None:
        return Named(loss=_loss(line) if _OF_TRAINING.match(line) else None)
    loss = _loss(line)
    # A word on a step alone may be about anything: `step 3: build the model`.
    return Named() if loss is None else Named(int(found[1]), int(found[2]) if found[2] else None, loss)


def _loss(line: str) -> float | None:
    found = (each for each in _LOSS.finditer(line) if not _OTHER_LOSS.match(each[1] or ""))
    first = next(found, None)
    return None if first is None else float(first[2])


def newer(new: Named, old: Named) -> Named:
    """Return what the newer line names, and else what the older one does."""
    return Named(
        old.step if new.step is None else new.step,
        old.total if new.total is None else new.total,
        old.loss if new.loss is None else new.loss,
    )


class Log:
    """The log of a rank or of its launcher, as it grows."""

    def __init__(self, path: Path, patterns: Patterns) -> None:
        """Read nothing yet; the patterns of the user come before ours."""
        self._path, self._patterns = path, patterns
        self._inode, self._offset, self._rest = -1, 0, ""

    def read(self) -> Named:
        """Return the newest step and the newest loss in the lines that are new."""
        newest, lines = Named(), self._new()
        for line, own in zip(lines, self._patterns.named(lines), strict=True):
            newest = newer(own if own != Named() else named(line), newest)
        return newest

    def _new(self) -> list[str]:
        try:
            piece = tail.grown(self._path, self._inode, self._offset, most=2 * _NEWEST, tail=_NEWEST, behind=_NEWEST)
        except OSError:
            return []
        if piece is None:
            return []
        rest = self._rest if not piece.anew and piece.offset == self._offset else ""
        self._inode, self._offset = piece.inode, piece.offset + len(piece.content)
        # A bar ends its lines by going back to their beginning, and a log may end in the middle of one.
        *lines, last = re.split(r"[\r\n]+", rest + piece.content.decode("utf-8", "replace"))
        self._rest = last[:_LONGEST]
        return lines if not _BAR.search(self._rest) else [*lines, last]


_SEARCH: Final = """
import json, re, sys
patterns, lines = json.load(sys.stdin)
found = [next((hit.groupdict() for each in patterns if (hit := re.search(each, line))), {}) for line in lines]
json.dump(found, sys.stdout)
"""


class Patterns:
    """Patterns of the user's, with groups `step`, `total` and `loss`."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Try nothing yet."""
        self._patterns = list(patterns)
        self.problem = ""
        """The reason for which they are not tried any more."""

    def named(self, lines: Sequence[str]) -> list[Named]:
        """Return what each of the lines names by them."""
        if self._patterns and lines and not self.problem:
            # Of more of them only the newest matter, and each costs time.
            given = json.dumps([self._patterns, [line[:_LONGEST] for line in lines[-_MOST_TRIED:]]])
            command = [sys.executable, "-I", "-S", "-c", _SEARCH]
            try:
                done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_PATIENCE_S)
                found: list[dict[str, str]] = json.loads(done.stdout)
                return [Named()] * (len(lines) - len(found)) + [_of_groups(each) for each in found]
            except (OSError, ValueError, subprocess.TimeoutExpired) as error:
                self.problem = clean_line(f"the patterns of [outside] log are not tried any more: {error}")
        return [Named()] * len(lines)


def _of_groups(found: Mapping[str, str | None]) -> Named:
    try:
        step, total = (max(0, int(text[:18])) if (text := found.get(key)) else None for key in ("step", "total"))
        return Named(step, total, float(text) if (text := found.get("loss")) else None)
    except ValueError:
        return Named()
