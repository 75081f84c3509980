"""Stacks in what a rank has left behind: Python's tracebacks, and what `faulthandler` writes when a process crashes.

Pure; the text may be hostile, and so are the names in it, until whoever shows them has cleaned them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from itertools import groupby
from typing import Final, NamedTuple

from ddptop.agent.run.script.sources import is_library
from ddptop.agent.run.script.stacks import USUAL

_MOST_FRAMES: Final = 200
_MOST_LINES: Final = 20_000
"""Lines at the end of a text in which a stack is looked for."""
_FRAME: Final = r'(?:\[[\w:]{1,20}\]:? ?)*\s*File "([^"\n]{1,4096})", line (\d{1,9}|\?\?\?),? in (.{1,400})'
"""A frame in a traceback, before which torch may put the rank, and in a crash dump, which has no second comma."""
_ESCAPED: Final = re.compile(r"\\x([a-f][0-9a-f])|\\u(?!d[89a-f])([0-9a-f]{4})|\\U(000[0-9a-f]{5}|0010[0-9a-f]{4})")
"""A character in a crash dump, which is ASCII."""
_RECURSION: Final = 20
"""Frames of one function in a crash dump, which has the innermost hundred, from which on it is a recursion."""
_OPENING: Final = "Traceback (most recent call last)"
_CRASH: Final = "Fatal Python error: "
_THREAD: Final = r"(Current thread|Thread) 0x[0-9a-f]{1,20}.{0,100}\(most recent call first\):"
_HANDLING: Final = "\nDuring handling of the above exception, another exception occurred:\n"
_CHAINED: Final = r"During handling of the above exception|The above exception was the direct cause"
_ORIGINAL: Final = f"Original {_OPENING}"
"""Above the traceback of a data worker, in the message of the exception that torch raises in its place."""
_QUOTING: Final = r"(?i).*traceback.*:\s*$"
"""A line in the message of an exception above a traceback that it quotes."""
_AFTER: Final = 10
"""Lines that a rank prints at most after a traceback which is still of its end."""
_COLLECTIVES: Final = (
    r"[/\\]torch[/\\]distributed[/\\](?:distributed_c10d|_functional_collectives|nn[/\\]functional)\.py$"
)
_NO_COLLECTIVE: Final = frozenset({"wrapper", "init_process_group", "new_group", "destroy_process_group", "wait"})


_FRAME_LINE: Final = re.compile(r'\s+File "([^"]+)", line ')
_CYCLE: Final = 8
"""Frames at most that repeat in a recursion, and are shown once."""


class Spot(NamedTuple):
    """A line of code that a frame of a stack executes."""

    file: str
    line: int
    """From 1; 0 where it is not known."""
    function: str

    @property
    def is_library(self) -> bool:
        """True for code of Python, of an installed package or of ddptop's agent, and for code without a file."""
        return self.file.startswith("<") or is_library(self.file)

    @property
    def text(self) -> str:
        """`train.py:31 main`."""
        where = f"{os.path.basename(self.file)}:{self.line}" if self.line else os.path.basename(self.file)
        return where if self.function == "<module>" else f"{where} {self.function}"


class Stack(NamedTuple):
    """The frames of a thread, the innermost first."""

    frames: tuple[Spot, ...] = ()

    @property
    def user(self) -> Spot | None:
        """The innermost frame of the user's code."""
        return next((spot for spot in self.frames if not spot.is_library), None)

    @property
    def repeats(self) -> bool:
        """True where a few functions of the user's fill it: a recursion without end."""
        counts = Counter((spot.file, spot.function) for spot in self.frames if not spot.is_library)
        return bool(counts) and counts.most_common(1)[0][1] >= _RECURSION

    @property
    def collective(self) -> str:
        """The function of torch.distributed that the user's code has called last, empty where it is none."""
        found = ""
        for spot in self.frames:
            if not spot.is_library:
                break
            name = spot.function
            if re.search(_COLLECTIVES, spot.file) and not name.startswith("_") and name not in _NO_COLLECTIVE:
                found = name
        return found


class Crash(NamedTuple):
    """The lines of `faulthandler` at the end of a process."""

    what: str
    """`Segmentation fault`, `Aborted`."""
    stack: Stack
    """Of the thread that crashed; where that is no thread of Python, of one that ran the user's code."""
    text: str
    """The dump, without its list of extension modules."""
    before: str
    """The output before it."""


def of_traceback(text: str, *, recorded: bool = False) -> Stack:
    """Return the stack of the last traceback in a text, which is the record of one exception where it is `recorded`."""
    found = _last(text.splitlines()[-_MOST_LINES:], recorded=recorded)
    return Stack(tuple(_spots(found.lines)[::-1][:_MOST_FRAMES]))


def traceback(text: str) -> str:
    """Return the last traceback in a text, from its opening line up to the exception; empty where there is none."""
    return "\n".join(_last(text.splitlines()[-_MOST_LINES:]).lines)


def before(text: str) -> str:
    """Return a text up to its last traceback, and to those of the exceptions from which that one came."""
    lines = text.splitlines()[-_MOST_LINES:]
    return "\n".join(lines[: _last(lines).begin])


def printed(output: str) -> str:
    """Return the traceback with which the output of a process ends, but for a few lines; empty where it does not."""
    lines = [line for line in output.splitlines()[-_MOST_LINES:] if line.strip()]
    found = _last(lines)
    return "\n".join(found.lines) if len(lines) - found.end <= _AFTER else ""


class _Last(NamedTuple):
    lines: list[str]
    begin: int
    """Number of the first line of it, and of the tracebacks above of which it came."""
    end: int
    """Number of the line below it."""


def _last(lines: list[str], *, recorded: bool = False) -> _Last:
    """Return the last traceback that no exception quotes in its message."""
    start, begin, above = None, len(lines), ""
    for number, line in enumerate(lines):
        if _OPENING in line:
            follows = _ORIGINAL in line or re.search(_CHAINED, above) is not None
            if start is None or follows or not (recorded or re.match(_QUOTING, above)):
                start, begin = number, begin if follows and start is not None else number
        above = line if line.strip() else above
    if start is None:
        return _Last([], begin, 0)
    prefix = lines[start].partition(_OPENING)[0]
    end = start + 1
    # The first line that is not indented is the exception; its message may have further lines.
    while end < len(lines) and (not (rest := _bare(lines[end], prefix)) or rest[0].isspace()):
        end += 1
    end += 1
    while end < len(lines) and prefix and lines[end].startswith(prefix):
        end += 1
    return _Last([_bare(line, prefix) for line in lines[start:end]], begin, end)


def root(text: str) -> str | None:
    """Return the traceback of the exception during whose handling the last one was raised, the first of several.

    Its last line is the exception.  None where there is none in the user's code, or one that programs raise and catch
    as a matter of course.
    """
    first, found, _ = text.partition(_HANDLING)
    first = first.strip()
    is_own = bool(found and first) and of_traceback(first, recorded=True).user is not None
    return first if is_own and not re.match(USUAL, first.splitlines()[-1]) else None


def _bare(line: str, prefix: str) -> str:
    return line.removeprefix(prefix) if prefix.strip() else line


def crash(text: str) -> Crash | None:
    """Return what `faulthandler` has written last in a text, None where it has written nothing."""
    lines = text.splitlines()[-_MOST_LINES:]
    start = max((number for number, line in enumerate(lines) if line.startswith(_CRASH)), default=None)
    if start is None:
        return None
    stacks: list[tuple[bool, list[str]]] = []
    end = start + 1
    for line in lines[start + 1 :]:
        if found := re.match(_THREAD, line):
            stacks.append((found[1] == "Current thread", []))
        elif line.startswith("  ") and stacks:
            lines[end] = _ESCAPED.sub(lambda found: chr(int(found[1] or found[2] or found[3], 16)), line)
            stacks[-1][1].append(lines[end])
        elif line.strip():
            break
        end += 1
    found_stacks = [(current, Stack(tuple(_spots(each)[:_MOST_FRAMES]))) for current, each in stacks]
    current = next((stack for is_current, stack in found_stacks if is_current), Stack())
    # The main thread is the last of them.
    others = [stack for _, stack in found_stacks if stack.user is not None][::-1]
    chosen = current if current.user is not None or not others else others[0]
    dump = "\n".join(lines[start:end]).rstrip()
    return Crash(lines[start][len(_CRASH) :].strip(), chosen, dump, "\n".join(lines[:start]))


def _spots(lines: list[str]) -> list[Spot]:
    found = (re.match(_FRAME, line) for line in lines)
    return [Spot(each[1], int(each[2]) if each[2].isdecimal() else 0, each[3].strip()) for each in found if each]


def folded(trace: list[str]) -> tuple[str, ...]:
    """Return a traceback with the frames of libraries between those of the user's code as one line each."""
    blocks: list[tuple[bool, list[str]]] = []
    for line in trace:
        if found := _FRAME_LINE.match(line):
            blocks.append((is_library(found[1]), [line]))
        elif line[:1].isspace() and not line.startswith("  …") and blocks and blocks[-1][1][0][:1].isspace():
            blocks[-1][1].append(line)
        else:
            blocks.append((False, [line]))
    blocks, told = _without_repeats(blocks), []
    for library, group in groupby(blocks, key=lambda block: block[0]):
        frames = [lines for _, lines in group]
        if library and len(frames) > 1:
            told.append(f"  … {len(frames)} frames of libraries")
        else:
            told += [line for lines in frames for line in lines]
    return tuple(told)


def _without_repeats(blocks: list[tuple[bool, list[str]]]) -> list[tuple[bool, list[str]]]:
    """Return frames with those once that come again and again, up to `_CYCLE` of them in a row."""
    found: list[tuple[bool, list[str]]] = []
    places = [lines[0] for _, lines in blocks]
    at = 0
    while at < len(blocks):
        for length in range(1, _CYCLE + 1):
            times = 1
            while places[at : at + length] == places[at + times * length : at + (times + 1) * length]:
                times += 1
            if times > 2 and _FRAME_LINE.match(places[at]):
                found += blocks[at : at + length]
                found.append((False, [f"  … {'that' if length == 1 else f'these {length}'} {times - 1} times more"]))
                at += times * length
                break
        else:
            found.append(blocks[at])
            at += 1
    return found
