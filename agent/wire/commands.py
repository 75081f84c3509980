"""Commands to a rank or to the observer, each of them answered by one `Reply` of `answers`.

Onlookers ask the observer for an action (`Act`, `Kill`); the observer alone sends the ranks what it consists of:
`Hold`, `Commit`, `Keep`, `Advance`, `Resume`, `Save`, `Probe`, `End`.  That a rank is held it says by its `Beat`.
"""

# Without `annotations` from `__future__`, each of which msgspec would compile: every command and rank waits for that.
from typing import Annotated

import msgspec

from ddptop.agent.wire.diagnoses.memory import CENSUS_MS, MOST_CENSUS_STEPS
from ddptop.agent.wire.diagnoses.probes import MOST_PAIRS, Pair
from ddptop.agent.wire.diagnoses.profiles import MOST_PROFILED
from ddptop.agent.wire.hosts import Conclude, HostEnd
from ddptop.agent.wire.incoming import Label, Name
from ddptop.agent.wire.message import MOST_WHOLE, Count, Furthest, Message, Pid, Rank, Size, Whole


class Hold(Message, frozen=True, tag="hold"):
    """Phase one of a pause: the rank promises not to pass the end of its current step.

    Answered with `Reply.step`, the promised step. The promise lapses after `lease_ms`.
    """

    id: Whole
    token: Label
    lease_ms: Count = 4000
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Commit(Message, frozen=True, tag="commit"):
    """Phase two: the promise moves to `step`, and its lease is renewed. Refused once the promise has lapsed.

    The group is held as long as the observer repeats this.
    """

    id: Whole
    token: Label
    step: Count
    lease_ms: Count = 4000
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Keep(Message, frozen=True, tag="keep"):
    """The hold lasts until `Resume`, whatever becomes of the observer. Refused once the promise has lapsed."""

    id: Whole
    token: Label
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Resume(Message, frozen=True, tag="resume"):
    """End the hold of the rank, whoever paused it."""

    id: Whole
    asked_ns: Whole | None = None
    until_ns: Whole | None = None
    token: Label | None = None
    """End the lease of this action, and no other hold."""


class Fill(Message, frozen=True, tag="fill"):
    """From an observer: send the step records from `first_seq` on that the rank still has: `Steps` messages, then a
    `Reply`.
    """

    id: Whole
    first_seq: Count = 0
    limit: Count = 20_000
    """The answer has at most so many of the newest records, and so a few megabytes."""


class Inspect(Message, frozen=True, tag="inspect"):
    """Ask where the rank stands: `Reply.inspection`.

    Where the rank's agent does not answer, the observer looks at the process from outside.
    """

    id: Whole
    stacks: bool = True
    """False: the collectives alone."""
    native: bool = False
    """Ask for the frames of C and C++ too, which only a look from outside has."""


class Profile(Message, frozen=True, tag="profile"):
    """Profile whole steps of the rank by torch's profiler: `Reply.profiled`.

    The reply is `pending` until the trace is written, and the observer repeats the message with the same `token`.
    Refused, with `Reply.step`, where the rank had begun the first of these steps before it was asked.
    """

    id: Whole
    token: Label
    number: Count
    """Number of the profile in its run, from 1."""
    first: Count
    steps: Annotated[int, msgspec.Meta(ge=1, le=MOST_PROFILED)] = 3
    cancelled: bool = False
    """Nobody waits for the profile of this token any more: it is not made, or removed."""


class ReadProfile(Message, frozen=True, tag="read_profile"):
    """Ask a rank for a piece of the trace that it has written: `Reply.piece`.

    The rank removes the trace once it is asked for what is behind its end.
    """

    id: Whole
    token: Label
    offset: Size


class Memory(Message, frozen=True, tag="memory"):
    """Take a census of the rank's memory at the boundaries before and behind some steps: `Reply.memory`.

    The reply is `pending` until both are taken, and the observer repeats the message with the same `token`. Refused,
    with `Reply.step`, where the rank had begun the first of these steps before it was asked.
    """

    id: Whole
    token: Label
    number: Count
    """Number of the census in its run, from 1. 0: it is not kept, and there is no snapshot of a device."""
    first: Count
    """The first of the steps. 0: the one that begins next."""
    steps: Annotated[int, msgspec.Meta(ge=1, le=MOST_CENSUS_STEPS)] = 3
    cancelled: bool = False
    """Take none: nobody waits for those of this token any more."""
    most_ms: Annotated[int, msgspec.Meta(ge=1, le=CENSUS_MS[1])] = CENSUS_MS[0]
    """Milliseconds for which the training thread is held at most, by both censuses."""


class Look(Message, frozen=True, tag="look"):
    """Look at the training thread of the rank many times within some seconds: `Reply.looks`.

    The reply is `pending` until then, and the observer repeats the message with the same `token`.
    """

    id: Whole
    token: Count
    """Another one begins anew."""
    modules: bool = False
    """Look for the modules whose backward pass torch executes, too, which costs the training more."""


class ReadLog(Message, frozen=True, tag="read_log"):
    """Ask the observer of a rank's host what the rank has printed since: `Reply.log`, None where that is nothing."""

    id: Whole
    inode: Count = 0
    """Of the file that was read before; 0: none was."""
    offset: Size = 0
    """Up to which it was read."""
    tail: Size = 1 << 18
    """Bytes before the end at which to begin with another file, or where far more was added."""


class RecordEvery(Message, frozen=True, tag="record_every"):
    """Record one step in so many from the next boundary on, and only count the others.

    Ranks need not change at the same step: of powers of two, the steps of the larger are among those of the smaller.
    Refused where the rank's environment fixes the number.
    """

    id: Whole
    every: Count


class Check(Message, frozen=True, tag="check"):
    """Ask for the checksums of the rank's parameters at the end of `step`: `Reply.checksums`.

    The reply is `pending` until the rank has made the step, and the controller repeats the message. Refused where the
    rank had made the step before it was asked.
    """

    id: Whole
    step: Count


class Advance(Message, frozen=True, tag="advance"):
    """A rank that is held without a lease goes on to the end of `step`, and is held there. Refused where it is not."""

    id: Whole
    step: Count
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class End(Message, frozen=True, tag="end"):
    """The script of the rank ends where it is held, with its `finally` clauses and exit code 0."""

    id: Whole
    who: Label
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Save(Message, frozen=True, tag="save"):
    """Call the script's checkpoint function where the rank is held, and renew the lease.

    The controller repeats the message with the same `token` while the `Reply` is `pending`; the function runs once.
    """

    id: Whole
    token: Label
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Probe(Message, frozen=True, tag="probe"):
    """Do one part of a probe where the rank is held, and renew the lease: `Reply.probed`.

    The controller repeats the message with the same `token` and `part` while the `Reply` is `pending`. Messages between
    ranks are sent only where all ranks of the group have got the command: each of them asks the others first.
    """

    id: Whole
    token: Label
    part: Count
    """Number of the part within the probe."""
    kind: Name
    """`room`: say for how large matrices there is room; `own`: what the rank does by itself; `pairs`: messages of each
    pair in turn; `group`: those of all ranks."""
    ms: Count = 0
    """`own`: milliseconds of one experiment."""
    size: Size = 0
    """`own`: order of the matrices, 0 where there is no room for any; otherwise bytes of a large message."""
    closely: bool = False
    """`own`: look for the processes that take the cores."""
    files: bool = True
    """`own`: write and read files, too."""
    rounds: Annotated[
        tuple[Annotated[tuple[Pair, ...], msgspec.Meta(max_length=MOST_PAIRS)], ...],
        msgspec.Meta(max_length=MOST_PAIRS),
    ] = ()
    """`pairs`: the pairs of which all send at once, and those that do after them."""
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Caller(msgspec.Struct, frozen=True):
    """The process that asks for an action, as `agent.run.identity.Process` has it."""

    pid: Pid
    started: float
    boot: Label
    namespace: Label


class Act(Message, frozen=True, tag="act"):
    """To the observer: carry out an action on all ranks at a common step.

    Answered once it is done, or refused; what it waits for meanwhile is `RunFrame.waiting`. One action goes on at a
    time; a `resume` cancels one that still waits for ranks.
    """

    id: Whole
    action: Name
    """`pause`, `step`, `resume`, `checkpoint`, `stop`, `checksum`, `profile`, `probe`, `memory`, `join` or `leave`."""
    who: Label = ""
    """The author of the action, for the event list: `ada (dashboard, pts/3)`."""
    steps: Count = 1
    """`step`: steps to make from a pause; `profile`: steps to profile; `memory`: steps between two censuses."""
    checkpoint: bool = True
    """`stop`: save a checkpoint before, where the script has registered a function for it."""
    asked_ns: Whole | None = None
    until_ns: Whole | None = None
    ranks: Annotated[tuple[Rank, ...], msgspec.Meta(max_length=1024)] | None = None
    """`profile` and `memory`: the ranks that are asked. None: all."""
    culprit: bool = False
    """`profile` and `memory`: ask the rank that a verdict accuses, of a profile an ordinary one too; `ranks` where
    none is accused."""
    caller: Caller | None = None
    """A diagnosis ends with it. None: unknown."""
    most_ms: Annotated[int, msgspec.Meta(ge=1, le=CENSUS_MS[1])] = CENSUS_MS[0]
    """`memory`: as in `Memory`."""


class Cancel(Message, frozen=True, tag="cancel"):
    """To the observer: cancel the action that this socket has asked for. Refused where it waits for no ranks."""

    id: Whole
    who: Label = ""
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Kill(Message, frozen=True, tag="kill"):
    """To the observer: end the run, one of its ranks or processes, or only send them a signal."""

    id: Whole
    grace_s: float
    rank: Rank | None = None
    who: Label = ""
    """The author of the action, for the event list: `ada (dashboard, pts/3)`."""
    pid: Pid | None = None
    """End only this process; refused where it does not belong to the run."""
    started: float | None = None
    """Start time of that process (`Process.started` of `agent.run.identity`): a later one may have its pid."""
    signal: Pid | None = None
    """Send only this signal, instead of SIGTERM, a grace period and SIGKILL."""
    asked_ns: Whole | None = None
    until_ns: Whole | None = None
    host: Label = ""
    """The host of process `pid`. Empty: that of the observer which is asked."""


class History(Message, frozen=True, tag="history"):
    """To the observer: ask for a number of some ranks over a stretch of steps or of time, as columns of a plot."""

    id: Whole
    metric: Label = ""
    """A name of `agent.wire.steps.numbers`. Empty: the answer is the `Extent` alone."""
    ranks: Annotated[tuple[Rank, ...], msgspec.Meta(max_length=1024)] | None = None
    """None: all."""
    first: Furthest = 0
    last: Furthest = 1 << 53
    """Both ends are included: steps, counted on over restarts, or seconds since the epoch."""
    by: Name = "step"
    """`step` or `time`."""
    most: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 512
    """Columns that the asker can draw, about: the answer's columns are so wide that there are not more."""
    width: Furthest = 1
    """Steps or seconds of a column at least."""


class WholeSteps(Message, frozen=True, tag="whole_steps"):
    """To the observer: ask for the newest steps of some ranks as these have recorded them, compared with each other."""

    id: Whole
    ranks: Annotated[tuple[Rank, ...], msgspec.Meta(max_length=1024)]
    first: Furthest = 0
    last: Furthest = 1 << 53
    """Both ends are included: steps as the ranks count them since they were started last."""
    most: Annotated[int, msgspec.Meta(ge=1, le=MOST_WHOLE)] = MOST_WHOLE
    """Of these, the newest so many are sent, or fewer where they are large."""


class Leave(Message, frozen=True, tag="leave"):
    """A rank that has joined in the middle of its training leaves the run at the end of its present step.

    Its record says then that it has no agent.
    """

    id: Whole
    cancelled: bool = False
    """It stays, unless it has left."""
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


Expiring = Leave | Hold | Commit | Keep | Resume | Advance | End | Save | Probe | Act | Cancel | Kill
"""Commands with a deadline: refused after `until_ns`, by the clock of `agent.control.deadline`; None: no deadline.

`asked_ns` is the time of sending, by the same clock.
"""

Command = (
    Leave | Hold | Commit | Keep | Resume | Fill | Act | Cancel | Kill | Advance | End | Save | History | WholeSteps
    | Inspect | Look | Memory | Profile | ReadProfile | Probe | ReadLog | Check | RecordEvery | HostEnd | Conclude
)  # fmt: skip
