"""The place at which a rank stands, in detail: the stacks of its threads, and its collectives.

Made by the rank's agent on request (`Inspect`), or from outside of the process where the agent cannot answer.
"""

# Without `annotations` from `__future__`, each of which msgspec would compile: every command and rank waits for that.
from typing import Annotated, Final

import msgspec

from ddptop.agent.wire.incoming import Label, Line, Name
from ddptop.agent.wire.message import Amount, Called, Count, Moment, Pid, Rank, Size, Span

MOST_THREADS: Final = 64
"""Threads of one inspection at most, the training thread first."""
MOST_FRAMES: Final = 100
"""Frames of one stack at most; where it is deeper the middle is left out."""


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A function of a stack, at the line that it executes."""

    function: Called
    file: Line
    line: Count
    """Number of the line, from 1; 0 where it is not known."""
    source: Line = ""
    """Text of the line, empty where it could not be read."""
    library: bool = False
    """True for code of an installed package, of Python itself, or of ddptop: not the user's."""


class Thread(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One thread of a process."""

    name: Label
    frames: tuple[Frame, ...] = ()
    """The innermost first. Empty: they could not be read."""
    main: bool = False
    """True for the training thread, which is the main one as long as no other makes steps."""
    native_id: Pid | None = None
    """The system's id of the thread."""
    left_out: Count = 0
    """Frames in the middle that were left out, after the first half of `frames`."""
    holds_gil: bool | None = None
    """Whether it holds the interpreter lock. None: not known."""
    lock: Line = ""
    """The lock of the script's for which it waits, and its holder: `guard, which thread metrics holds (train.py:18)`.
    Empty: it waits for none, or that is not known."""


class OpenCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A collective, a send or a receive that was called and has not completed; `new_group` while a group is made."""

    op: Called
    group: Called
    """Process group, with the same name on all its ranks; `0` is the default group."""
    number: Count
    """The how-manieth call of this group on this rank it is, counted from 1; 0 for a send or a receive."""
    bytes: Size
    open_ns: Span
    """Time since the call."""
    blocking: bool = False
    """True where the rank's training thread is blocked in it."""
    sure: bool = True
    """False where its completion is not reported, so that it may have completed."""
    form: Label = ""
    """`float32[64, 10]`: type and shape of this rank's input, the first where it is several. Empty: not known."""


class PastCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A call that was made."""

    op: Called
    bytes: Size
    form: Label = ""
    """As in `OpenCall`."""


class GroupCalls(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The calls of one process group on this rank."""

    group: Called
    calls: Count
    """Calls made so far; point-to-point calls are not counted, because not all ranks of the group make them."""
    ranks: tuple[Rank, ...] = ()
    """The ranks of the group, by their numbers in the run. Empty: not known, or all."""
    recent: tuple[PastCall, ...] = ()
    """The newest calls, the newest last: enough to find where two ranks parted."""
    timeout_s: Amount | None = None
    """Timeout of its calls. None: not known."""


class Work(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a rank and its children have done since they began, in numbers that grow with it."""

    at_ns: Moment
    file_bytes: Size
    """Read and written by the rank without its agent, of files and pipes, and by children that it has waited for."""
    socket_bytes: Size
    """Sent and received by the rank on TCP connections that it has opened, up to the last look at each."""
    child_bytes: Size
    """Both of these of its children and theirs."""
    child_cpu_ms: Count
    """CPU time of its children and theirs, those that have ended included."""
    thread_cpu_ms: Count
    """CPU time of the rank without that of its main thread."""
    children: Count = 0
    """Children and theirs that live."""
    connections: Count = 0
    """The TCP connections of these bytes, those that have been closed included."""
    written_bytes: Size = 0
    """The part of `file_bytes` that was written."""


class Inspection(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The place of one rank at one moment."""

    rank: Rank
    at_ns: Moment
    by: Name
    """`agent`, `py-spy`, or `system` where there are no stacks."""
    pid: Pid
    state: Name = ""
    """The rank's state, as in `Beat`; empty where the agent did not answer."""
    activity: Label = ""
    step: Count = 0
    threads: tuple[Thread, ...] = ()
    threads_left_out: Count = 0
    open: tuple[OpenCall, ...] = ()
    """Calls that have not completed, oldest first."""
    groups: tuple[GroupCalls, ...] = ()
    observed: bool = False
    """True where every collective is seen, so that a call that is missing here was not made."""
    status: Name = ""
    """Status of the process in psutil's spelling: `running`, `sleeping`, `stopped`. Empty: not read."""
    cpu_percent: Amount | None = None
    """CPU of the process in the moments before; 100 is one core."""
    problem: Line = ""
    """The reason why something is missing, and what would help: one line."""
    generation: Count = 0
    """Restart count of the group when this process began."""
    traced_by: Pid | None = None
    """The process that traces this one, such as a debugger. None: there is none, or it was not looked for."""
    swapped_bytes: Size | None = None
    """Memory of the process that is on the swap device. None: not read; so is the next one."""
    page_reads_per_s: Amount | None = None
    """Pages that the process had to wait for, because they were on a disk: many while it swaps."""
    memory_bytes: Size | None = None
    """Resident memory of the process. None: not read, as by its own agent; so is the next one."""
    moved_bytes: Size | None = None
    """What it has read and written since its start, of files and pipes, also where the system had it in its cache."""
    own_bytes: Size | None = None
    """Bytes that the agent itself has read and written, which is no work of the rank. None: not known."""
    work: Work | None = None
    """None: not measured, as of a rank whose main thread is blocked in a call."""
    exception: Line = ""
    """Type and message of the exception that its training handles meanwhile: in a `finally`, or an `except`."""
    raised_at: Line = ""
    """The user's line that raised it: `train.py:31 main`."""
    dead_thread: Line = ""
    """The last thread of the script that an exception has ended: `thread prefetch died: KeyError: 'x'`."""


MOST_STACKS: Final = 256
"""Different stacks of all looks at most."""
MOST_PLACES: Final = 400
"""Different frames of all of them."""


class Stack(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stack that a thread was seen in, and the time for which it was."""

    phase: Name
    """A phase of `PHASES`, or `worker`."""
    frames: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0, lt=MOST_PLACES)], ...], msgspec.Meta(max_length=64)]
    """Numbers of `Looks.places`, the outermost frame first; of library code only the innermost ones."""
    ns: Span


class Looks(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The time that a thread has spent in each line, by many looks at its stack."""

    steps: Count
    """Steps of the training that the looks are of, or batches of data workers."""
    places: Annotated[tuple[Frame, ...], msgspec.Meta(max_length=MOST_PLACES)] = ()
    stacks: Annotated[tuple[Stack, ...], msgspec.Meta(max_length=MOST_STACKS)] = ()
    """Those with the most time; of the others nothing is said."""
