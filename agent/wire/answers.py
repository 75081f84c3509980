"""Answers to commands: one `Reply` to each.

Before it come, for `Fill`, any number of `Steps`, for `History` an `Extent` and any number of `HistoryPart`, and for
`WholeSteps` one `KeptSteps` and any number of `AlignedSteps`.
"""

# Without `annotations` from `__future__`, each of which msgspec would compile: every command and rank waits for that.
from typing import Annotated, Final

import msgspec

from ddptop.agent.wire.diagnoses.memory import MemoryUse
from ddptop.agent.wire.diagnoses.probes import Probed
from ddptop.agent.wire.diagnoses.profiles import Profiled, ProfilePiece
from ddptop.agent.wire.hosts import Census
from ddptop.agent.wire.incoming import Label, Line, Name
from ddptop.agent.wire.inspection import Inspection, Looks
from ddptop.agent.wire.message import (
    MOST_COLUMNS,
    MOST_WHOLE,
    Amount,
    Count,
    Furthest,
    Message,
    Moment,
    Rank,
    Size,
    Span,
    Whole,
)
from ddptop.agent.wire.telemetry import Checksums, Step, Steps

MOST_OF_LOG: Final = 64 << 10
"""Bytes of one piece of a log."""


class LogPiece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of what a rank has printed, as the bytes of its log."""

    inode: Count
    """Of the file."""
    offset: Size
    """Where the piece begins."""
    content: Annotated[bytes, msgspec.Meta(max_length=MOST_OF_LOG)]
    size: Size
    """Bytes of the file."""
    anew: bool = False
    """True where it is another file than the one read before, or was cut short."""


class Compared(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One module on all ranks that have it."""

    group: Name
    """Its process group; empty where it is not wrapped in DDP, and may differ."""
    number: Count
    ranks: Annotated[tuple[Rank, ...], msgspec.Meta(max_length=4096)]
    """The ranks on which it is comparable."""
    tensors: Count
    differing_ranks: Annotated[tuple[Rank, ...], msgspec.Meta(max_length=4096)] = ()
    differing_tensors: Count = 0
    first: Line = ""
    """The name of the first tensor that differs."""
    text: Line = ""
    """The difference as a sentence; empty where there is none."""


class Parameters(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The parameters of a group at one step."""

    step: Count
    modules: Annotated[tuple[Compared, ...], msgspec.Meta(max_length=4096)] = ()
    reasons: Annotated[tuple[Line, ...], msgspec.Meta(max_length=1024)] = ()
    """Why some tensors are not compared, a line each."""


class Reply(Message, frozen=True, tag="reply"):
    """The one answer to a command."""

    id: Whole
    done: bool
    text: str = ""
    """The outcome, or the reason for the refusal."""
    step: Count | None = None
    pending: bool = False
    """Ask again: the function of a `Save` or a part of a `Probe` still runs, the step of a `Check` is not made yet, or
    too many others wait for the answer to a `Fill`."""
    took_ns: Moment | None = None
    """`Save`: the time that the script's function took."""
    refusal: Name = ""
    """The kind of refusal, one of `vocabulary.refusals`; also of the reply in place of a rank that does not answer.
    Empty: no special one."""
    parameters: Parameters | None = None
    """`Act` of a `checksum`: the parameters of all ranks at one step, compared."""
    inspection: Inspection | None = None
    """`Inspect`: where the rank stands."""
    checksums: Checksums | None = None
    """`Check`: those at the end of the step."""
    census: Census | None = None
    """`Kill` of the run, from the observer of another host: what has ended there."""
    log: LogPiece | None = None
    """`ReadLog`: what the rank has printed since."""
    profiled: Profiled | None = None
    """`Profile`: the trace, once it is written."""
    piece: ProfilePiece | None = None
    """`ReadProfile`: a piece of it."""
    looks: Annotated[tuple[Looks, ...], msgspec.Meta(max_length=2)] = ()
    """`Look`: those at the training thread, and then those at data workers, where the rank has any."""
    probed: Probed | None = None
    """`Probe`: one part of a probe, once it is done."""
    memory: MemoryUse | None = None
    """`Memory`: the census, once it is made."""


class Extent(Message, frozen=True, tag="extent"):
    """What a history holds; the first part of an answer to `History`."""

    id: Whole
    first: Furthest = 0
    last: Furthest = 0
    """The first and the last step of the ranks that were asked about, of all where none was; 0 where there is none."""
    newest: Furthest = 0
    """The last step of any rank."""
    complete: bool = True
    """False while the history is still being read from the recording."""
    names: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)] = ()
    """Values given by the script, in the order in which they came."""
    refused: Count = 0
    """Values left out because there were too many names."""


class HistoryPart(Message, frozen=True, tag="history_part"):
    """A number of some ranks over consecutive columns, in tables of little-endian `float32`, a row each rank.

    A value that is not known is NaN, one that is not finite is infinite.
    """

    id: Whole
    metric: Label
    by: Name
    width: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
    """Steps or seconds of a column."""
    begin: Furthest
    """Number of the first column. Column n has the steps from `n * width + 1` to `(n + 1) * width`, or the seconds
    from `n * width` on."""
    columns: Annotated[int, msgspec.Meta(ge=0, le=MOST_COLUMNS)]
    ranks: bytes
    """The ranks of the rows, as little-endian `uint32`."""
    mean: bytes
    low: bytes = b""
    high: bytes = b""
    count: bytes = b""
    """Steps that the mean is of. This and the other tables below `mean` are empty in an answer by time."""
    at: bytes = b""
    """End of the last step of the column, in seconds after `at_s`."""
    at_s: Amount = 0.0
    """Seconds since the epoch."""


class KeptSteps(Message, frozen=True, tag="kept_steps"):
    """The steps that are kept whole; the first part of an answer to `WholeSteps`."""

    id: Whole
    numbers: Annotated[tuple[Furthest, ...], msgspec.Meta(max_length=MOST_WHOLE)] = ()
    """Those that all the ranks have made, rising; where there is none, those that any of them has made."""
    complete: bool = True
    """False while the record cannot be read."""
    generation: Count = 0
    """Restart count of the group at these steps."""
    compared: Count = 0
    """Hosts whose clocks are compared; with another number all steps are compared anew."""


class Split(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One collective of a rank, split into the wait for the last rank and the transfer after that."""

    begun_ns: Whole
    """When the last rank had entered it, and a worker of its backend had taken it up; from the start of the step."""
    last: Rank
    """The rank that entered it last, or whose backend took it up last."""
    estimated: bool = False


class AlignedStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One step of a rank on the clock of the head, compared with the same step of other ranks."""

    rank: Rank
    step: Step
    """As the rank has recorded it."""
    begin_ns: Whole
    """When it began, in ns since the epoch, by the clock of the head; by its own where that is not compared."""
    is_compared: bool = True
    error_ns: Span = 0
    """By so many ns two moments of this step on different hosts may be further apart, or closer."""
    splits: tuple[Split | None, ...] = ()
    """Those of the collectives of `step`, in order. None: not to be split."""


class AlignedSteps(Message, frozen=True, tag="aligned_steps"):
    """A part of the answer to `WholeSteps`, the newest steps first."""

    id: Whole
    steps: tuple[AlignedStep, ...]


Answer = Steps | Reply
HistoryAnswer = Extent | HistoryPart | KeptSteps | AlignedSteps | Reply
"""To `History` and to `WholeSteps`."""
