"""The locks of the script's for which its threads wait, and the threads that hold them.

Python does not say who holds a lock.  A reentrant one tells its owner; of another one the holder is the thread that
stands within a `with` block of the same lock, by the indentation of the lines.  No code of the script's runs for it,
and nothing that its functions hold is kept.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Final

from ddptop.agent.rank.inspection.frames import variables
from ddptop.agent.rank.inspection.memory.objects import attribute, dict_of
from ddptop.agent.run.script.stacks import function_name

_TAKES: Final = re.compile(r"\s*(?:async )?with\b(.+)|.*?([\w.]+)\.acquire\(")
_NAME: Final = re.compile(r"(?<![\w.(\[])[A-Za-z_]\w*(?:\.\w+)*(?=\s*(?:,|:|\)|as\b|$))")
_PLAIN: Final = type(threading.Lock())
_REENTRANT: Final = type(threading.RLock())
_OWNER: Final = re.compile(r"\bowner=(\d+)")
_DEEPEST: Final = 200
"""Frames of a thread in which a lock is looked for."""

Lines = Mapping[int, str]
"""Text of lines by number, with their indentation."""


def takes(line: str) -> bool:
    """Say whether a line may take a lock."""
    return _TAKES.match(line) is not None


def awaited(
    frames: Mapping[int, FrameType], names: Mapping[int, str], lines: Callable[[FrameType], Lines]
) -> dict[int, str]:
    """Return, by thread, the lock that it waits for and its holder: `guard, which thread metrics holds (train.py:18)`.

    Args:
        frames: by thread, its innermost frame.
        names: by thread, its name.
        lines: returns the lines of a frame's function up to its present one; none of a library's.
    """
    found = {}
    for ident, innermost in frames.items():
        frame: FrameType | None = innermost
        # A condition takes its lock in Python.
        while frame is not None and frame.f_globals.get("__name__") == threading.__name__:
            frame = frame.f_back
        if frame is None or not (text := lines(frame).get(frame.f_lineno, "")):
            continue
        others = {other: frames[other] for other in frames if other != ident}
        taken = [(name, _held(lock, others, names, lines)) for name, lock in _taken(text, frame) if _is_locked(lock)]
        # Of several in one line the thread has those before the one that another thread holds.
        if taken:
            found[ident] = "".join(next((each for each in taken if each[1]), taken[0]))
    return found


def _is_locked(lock: Any) -> bool:
    return type(lock) is _REENTRANT or lock.locked()


def _held(
    lock: object, frames: Mapping[int, FrameType], names: Mapping[int, str], lines: Callable[[FrameType], Lines]
) -> str:
    owner = _OWNER.search(repr(lock)) if type(lock) is _REENTRANT else None
    for ident, innermost in frames.items():
        if owner is not None and int(owner[1]) != ident:
            continue
        frame: FrameType | None = innermost
        for _ in range(_DEEPEST):
            if frame is None:
                break
            known = lines(frame)
            if any(each is lock for text in _around(known, frame.f_lineno) for _, each in _taken(text, frame)):
                file = frame.f_code.co_filename.rpartition("/")[2]
                where = f"{file}:{frame.f_lineno} {function_name(frame.f_code.co_name)}"
                return f", which thread {names[ident]} holds ({where})"
            frame = frame.f_back
        if owner is not None:
            return f", which thread {names[ident]} holds"
    return ""


def _around(lines: Lines, number: int | None) -> Iterator[str]:
    """Yield the headers of the blocks around a line, the innermost first."""
    depth = _depth(lines.get(number or 0, ""))
    for each in sorted((each for each in lines if each < (number or 0)), reverse=True):
        text = lines[each]
        if text.strip() and _depth(text) < depth:
            depth = _depth(text)
            yield text


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _taken(line: str, frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the locks that a line takes, by name."""
    match = _TAKES.match(line)
    for name in _NAME.findall(match[1] or match[2]) if match else ():
        lock = _value(name, frame)
        # A condition has its lock within. `isinstance` would ask an object for its `__class__`.
        inner = _attribute(lock, "_lock") if issubclass(type(lock), threading.Condition) else lock
        if type(inner) is _PLAIN or type(inner) is _REENTRANT:
            yield name, inner


def _value(name: str, frame: FrameType) -> object:
    first, *rest = name.split(".")
    found: object = variables(frame).get(first, frame.f_globals.get(first))
    for each in rest:
        found = _attribute(found, each)
    return found


def _attribute(owner: Any, name: str) -> object:
    """Return what an object or a class has under a name; no property of it is asked."""
    kind = type(owner)
    if issubclass(kind, type):
        return attribute(owner, name)
    own = dict_of(owner)
    return own[name] if own is not None and name in own else attribute(kind, name)
