"""The time of stacks summed up by lines: from the instructions of frames to what the observer is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType
from typing import Final, TypeAlias

from ddptop.agent.run.script.sources import Sources
from ddptop.agent.run.script.stacks import function_name
from ddptop.agent.text import clean
from ddptop.agent.wire import MOST_PLACES, MOST_STACKS, Frame, Looks, Stack

_OWN: Final = 16
"""Frames of the user's own code that a stack keeps, the innermost ones."""
_INNERMOST: Final = 8
"""Frames that it keeps whosever they are."""

_DEEPEST: Final = 200
"""Frames of a stack that are looked at."""
_LONGEST: Final = 100
"""Characters of the name of a function."""

Instruction: TypeAlias = "tuple[CodeType, int]"
"""A function, and the place of the instruction in it that it executes."""
Place: TypeAlias = "Instruction | str"
"""The same, or the name of a module whose backward pass is under way."""


class Tally:
    """The time by stack; for use from one thread."""

    def __init__(self, sources: Sources) -> None:
        """Prepare; `sources` are the files of this process."""
        self._sources = sources
        self._ns: Counter[tuple[str, tuple[Place, ...]]] = Counter()

    def add(self, phase: str, stack: tuple[Place, ...], ns: int) -> None:
        """Add time; of the stack the innermost frame is first."""
        self._ns[phase, stack] += max(0, ns)

    def looks(self, steps: int) -> Looks:
        """Return what has been added, of so many steps."""
        frames = {place: self._frame(place) for _, stack in self._ns for place in stack}
        by_frame: Counter[tuple[str, tuple[Frame, ...]]] = Counter()
        for (phase, stack), spent in self._ns.items():
            by_frame[phase, _kept([frames[place] for place in stack])] += spent
        return bounded(steps, by_frame)

    def _frame(self, place: Place) -> Frame:
        if isinstance(place, str):
            return Frame(clean(place, _LONGEST), "", 0)
        code, instruction = place
        file = code.co_filename
        # Python 3.10 does not know the class of a method.
        function = clean(function_name(getattr(code, "co_qualname", code.co_name)), _LONGEST)
        # Without the text of the line: nobody shows it, and a file system that hangs would hold up whoever reads it.
        return Frame(
            function, self._sources.name(file), _line(code, instruction), library=self._sources.is_library(file)
        )


def bounded(steps: int, stacks: Mapping[tuple[str, tuple[Frame, ...]], int]) -> Looks:
    """Return looks of so many steps: as many stacks as a message has room for, by their times.

    Args:
        steps: steps of the training, or batches of data workers.
        stacks: by phase and frames, the outermost frame first, the time spent.
    """
    numbers: dict[Frame, int] = {}
    kept = []
    for (phase, frames), spent in sorted(stacks.items(), key=lambda each: -each[1])[:MOST_STACKS]:
        new = [frame for frame in dict.fromkeys(frames) if frame not in numbers]
        if len(numbers) + len(new) <= MOST_PLACES:
            numbers |= {frame: number for number, frame in enumerate(new, len(numbers))}
            kept.append(Stack(phase, tuple(numbers[frame] for frame in frames), spent))
    return Looks(steps, tuple(numbers), tuple(kept))


def _kept(stack: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames that are kept of a stack, the outermost one first."""
    own = [frame for frame in stack[_INNERMOST:] if not frame.library]
    return (*reversed(own[:_OWN]), *reversed(stack[:_INNERMOST]))


def stack_of(frame: FrameType | None) -> tuple[Instruction, ...]:
    """Return where a thread stands, the innermost frame first; of deeper stacks the innermost frames."""
    stack: list[Instruction] = []
    while frame is not None and len(stack) < _DEEPEST:
        stack.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(stack)


def _line(code: CodeType, instruction: int) -> int:
    for begin, end, line in code.co_lines():
        if begin <= instruction < end and line is not None:
            return line
    return code.co_firstlineno
