"""The work or the wait of a rank's main thread, by its stack, and the user's line that it stands on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ddptop.agent.wire import Frame, Thread

SAVES: Final = "saves a checkpoint"
EVALUATES: Final = "evaluates"
COMPILES: Final = "compiles"
LOADS: Final = "waits for data"
LOCKS: Final = "waits for a lock"
QUEUES: Final = "waits for a queue"
SOCKETS: Final = "waits for a socket"
READS: Final = "reads"
STORE: Final = "waits for a key of the store"
WAITS_FOR_PROCESS: Final = "waits for another process"
SLEEPS: Final = "sleeps"
GROUPS: Final = "waits in new_group"
WAITS: Final = "waits"

WORK: Final = frozenset({SAVES, EVALUATES, COMPILES})
NAMED: Final = WORK | {LOADS}
"""Things of which the library's function says more than bytes and CPU time do."""
FOR_THREADS: Final = frozenset({LOCKS, QUEUES, WAITS})
WAITING: Final = frozenset({LOCKS, QUEUES, SOCKETS, READS, STORE, WAITS_FOR_PROCESS, WAITS})

_LIBRARY: Final = (
    # In the order in which they are looked for: the first says more than those after it.
    (re.compile(r"torch/utils/data/"), "", LOADS),
    (re.compile(r"torch/(_dynamo|_inductor|_functorch)/|/triton/"), "", COMPILES),
    (re.compile(r"torch/distributed/distributed_c10d\.py"), "new_group", GROUPS),
    (re.compile(r"torch/(serialization|distributed/checkpoint/.*)\.py|safetensors/"), "save", SAVES),
    (re.compile(r"(^|/)(subprocess|popen_\w+)\.py"), "", WAITS_FOR_PROCESS),
    (re.compile(r"(^|/)queues?\.py"), "", QUEUES),
    (re.compile(r"(^|/)(socket|ssl|urllib|http/client|selectors)(\.py|/)"), "", SOCKETS),
    (re.compile(r"(^|/)(threading|concurrent/futures/\w+|multiprocessing/\w+)\.py"), "", LOCKS),
)
"""Files of libraries, a part of the function's name, and what a thread does there."""
_EVALUATION: Final = re.compile(r"eval|validat|infer|predict|generat|(^|_)test(ing|_|$)", re.IGNORECASE)
_LONG: Final = re.compile(rf"save|checkpoint|snapshot|export|dump|{_EVALUATION.pattern}", re.IGNORECASE)
"""Names of the user's functions that take long. A name alone does not say what a rank does there."""
_MODEL: Final = re.compile(r"torch/nn/(modules|parallel|functional)|torch/_ops")
_SOURCE: Final = (
    (re.compile(r"\bsleep\w*\("), SLEEPS),
    (re.compile(r"\.acquire\(|^\s*with\b"), LOCKS),
    (re.compile(r"store\w*(\(\))?\.(get|wait)\(", re.IGNORECASE), STORE),
    (re.compile(r"\.(recv|accept|connect)\w*\("), SOCKETS),
    (re.compile(r"\.(read|readline)\w*\("), READS),
    (re.compile(r"\.get\("), QUEUES),
    (re.compile(r"\.(communicate|waitpid)\(|os\.wait"), WAITS_FOR_PROCESS),
    (re.compile(r"\.(join|wait)\("), WAITS),
)
"""Calls of C in the innermost line, which have no frame of their own."""
_COLLECTIVE: Final = re.compile(r"torch/distributed/(distributed_c10d|_functional_collectives\w*|device_mesh)\.py")
_NAMED: Final = re.compile(
    r"all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|barrier|monitored_barrier|gather|scatter|reduce|send"
    r"|recv|new_group|new_subgroups|split_group|init_device_mesh"
)


@dataclass(frozen=True)
class Place:
    """Where a thread stands."""

    where: str = ""
    """`train.py:31 main`: the innermost line of the user's, of any code where none is the user's."""
    line: str = ""
    """`train.py:31`."""
    function: str = ""
    """File and function without the line: the same place in the next epoch."""
    does: str = ""
    """One of the constants above, or empty."""
    source: str = ""
    """Text of the line, where the innermost frame of all is the user's."""
    collective: str = ""
    """The function of torch by which it meets other ranks, by its stack alone, such as `all_gather_object`,
    `init_device_mesh` or `store.get`; empty where it is in none."""
    takes_long: bool = False
    """True in functions that take long in healthy runs, by what they do or by their names."""


NOWHERE: Final = Place()


def place_of(thread: Thread | None) -> Place:
    """Return where a thread stands; an empty place where its stack is not known."""
    if thread is None or not thread.frames:
        return NOWHERE
    frames = thread.frames
    mine = next((frame for frame in frames if not frame.library), frames[0])
    line, function = f"{mine.file}:{mine.line}", _named(mine, frames)
    does = _doing(frames)
    return Place(
        where=f"{line} {function}",
        line=line,
        function=f"{mine.file} {function}",
        does=does,
        source="" if frames[0].library else frames[0].source,
        collective="store.get" if does == STORE else _collective(frames),
        takes_long=does in WORK or _is_within(frames, _LONG),
    )


def _named(frame: Frame, frames: Sequence[Frame]) -> str:
    """Return the name of a frame's function: of a comprehension or a lambda, that of the function around it."""
    outer = (each for each in frames[frames.index(frame) :] if each.file == frame.file)
    return next((each.function for each in outer if not each.function.startswith("<")), frame.function)


def _doing(frames: Sequence[Frame]) -> str:
    innermost = []
    for frame in frames:
        if not frame.library:
            break
        innermost.append(frame)
    for where, name, does in _LIBRARY:
        # Who has called the loader waits for data, also where the user's own dataset is below it.
        among = frames if does in (LOADS, SAVES, COMPILES) else innermost
        if any(frame.library and name in frame.function and where.search(frame.file) for frame in among):
            return does
    if any(frame.library and _MODEL.search(frame.file) for frame in innermost) and _is_within(frames, _EVALUATION):
        return EVALUATES
    if not frames[0].library:
        return next((does for pattern, does in _SOURCE if pattern.search(frames[0].source)), "")
    return ""


def _is_within(frames: Sequence[Frame], names: re.Pattern[str]) -> bool:
    # The name of a function around all of the training says nothing: `train_and_evaluate`.
    mine = (frame.function for frame in frames if not frame.library and "train" not in frame.function.lower())
    return any(names.search(function) for function in mine)


def _collective(frames: Sequence[Frame]) -> str:
    found = ""
    for frame in frames:
        if not frame.library:
            break
        if _COLLECTIVE.search(frame.file) and _NAMED.match(frame.function):
            found = frame.function
    return found
