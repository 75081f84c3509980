"""Every message that crosses a ZeroMQ socket of ddptop, on one page.

The messages need msgspec and the cleaning of text, and nothing else, so that any program can read and write them.
A message that was read here is clean and bounded, whoever sent it: text by `incoming`, whole numbers by their types.
`latencies` makes the latency of all-reduces from `Step` records, alike in the agent and in the dashboard.
Telemetry goes out on PUB sockets as two frames, `[topic, payload]`; commands travel
DEALER -> ROUTER as one payload and are answered by one `Reply` (and, for `Fill`, by any
number of `Steps` before it, for `History` by an `Extent` and any number of `HistoryPart`).
An answer that cannot be delivered is dropped.
The observer repeats what its ranks publish, under the topic and the number of the rank (`topic_of`), and `Ranks`, in
which the newest of all is together. What comes to its command socket as two frames, `[number of a rank, payload]`, goes
on to that rank; its answers come back as two such frames.
Fields whose name ends in `at_ns` are wall-clock nanoseconds (`time.time_ns`), other `_ns` fields are
durations, but for `asked_ns` and `until_ns` (see `Expiring`).  `None` means "not known", never zero.
A field may be added only at the end and only with a default; any other change raises `PROTOCOL`.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec

from ddptop.agent.wire.incoming import Label, Line, Name, clean_name, cleaned, is_plain

PROTOCOL: Final = 1

PHASES: Final = ("data", "forward", "backward", "optimizer", "wait", "other")
"""Exclusive phases of a step; together they make up its wall time."""

# A subscriber names the topics that it needs: ZeroMQ filters at the sender.
TOPIC_HELLO: Final = b"hello"
TOPIC_BEAT: Final = b"beat"
TOPIC_STEPS: Final = b"steps"
TOPIC_BATCH: Final = b"batch"
"""The records of a second in one message of `Steps`: for a subscriber to very many ranks, instead of `TOPIC_STEPS`."""
TOPIC_SUMMARY: Final = b"summary"
TOPIC_EVENT: Final = b"event"
TOPIC_RUN: Final = b"run"
TOPIC_VERDICTS: Final = b"verdicts"
TOPIC_RANKS: Final = b"ranks"


# A message with a number beyond its range is unreadable.

MOST_RANKS: Final = 65_536
"""Ranks of a run at most; a record or a message with more is damaged."""
Rank = Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
Pid = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Wall-clock nanoseconds, to the year 2262."""
Span = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]
"""A duration in nanoseconds, up to 104 days; below zero where a clock was set back."""
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""Bytes, or samples, of one step: sums of them stay within what a float and 64 bits hold."""
Furthest = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""Steps or seconds of a history: a float holds them."""
MOST_COLUMNS: Final = 8192
"""Columns of a part of a history at most."""
Whole = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A number that the script gives."""
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
"""Finite."""
Called = Annotated[str, msgspec.Meta(max_length=100, extra={"limit": 100})]
"""A name that every step repeats: the agent shortens it."""


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=True):
    """Base of all messages: a tagged msgpack array, about 130 bytes for a step."""


class Collective(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One collective, as measured on this rank."""

    op: Called
    """Name in lower case, as torch.distributed spells it: `all_reduce`, `broadcast`."""
    entered_ns: Span
    """Time of this rank's call, counted from the start of the step."""
    duration_ns: Span | None
    """From the call to completion on this rank, the wait for peers included. None: not observed."""
    bytes: Size
    """Size of this rank's input."""
    in_flight: Count
    """Collectives in flight on this rank when this one was called, itself included."""
    group: Called = ""
    """Process group, with the same name on all its ranks; `0` is the default group."""
    blocking: bool = False
    """True where the rank's main thread was blocked in it from the call to completion."""
    queued_ns: Span = 0
    """Part of the duration that passed before the backend began: gloo works on two collectives at a time."""
    estimated: bool = False
    """True where `queued_ns` is modelled, where completion was noticed only when the script waited for it, and where
    `in_flight` may count calls that were complete."""
    on_device: bool = False
    """True where the duration is measured on the device, by events; `entered_ns` is the time of the host's call."""


class Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One optimizer step of one rank. The six phases are exclusive, and those of our agent add up to `wall_ns`."""

    seq: Count
    """Consecutive number of the record, so that a gap can be noticed."""
    step: Count
    """Optimizer steps completed by the end of this record, counted from 1; a step that GradScaler skips counts."""
    end_at_ns: Moment
    wall_ns: Span
    data_ns: Span
    forward_ns: Span
    backward_ns: Span
    optimizer_ns: Span
    wait_ns: Span | None
    """Time in which this rank's main thread was blocked in a collective. None: collectives are not observed."""
    other_ns: Span
    loss: float | None = None
    samples: Size | None = None
    """Samples this rank drew from its loader for this step."""
    collectives: tuple[Collective, ...] = ()
    metrics: dict[str, float] = {}
    """Values that the script gave to `ddptop.agent.log` during this step."""
    device_ns: tuple[Span, ...] | None = None
    """Time on the device's own time line in data, forward, backward, optimizer and other, by events on the
    stream of the training thread; waits for peers or for the host are included. None: not on CUDA, not known."""
    starved_ns: Span | None = None
    """Time of the step in which the training thread was runnable but had no core; a batch of records
    shares one reading. None: the system does not report it."""
    lr: float | None = None
    """Learning rate of the optimizer's first parameter group. None: it is a tensor, or missing."""


class Hello(_Message, frozen=True, tag="hello"):
    """Identity of a rank, sent at the start and again to all subscribers for each new one."""

    protocol: Count
    run: Name
    run_id: Label
    rank: Rank
    local_rank: Rank
    world: Count
    pid: Pid
    started_at_ns: Moment
    host: Label
    program: Line
    agent_version: Name
    python_version: Name
    generation: Count = 0
    """Restart count of the group, from torchrun."""


class Beat(_Message, frozen=True, tag="beat"):
    """Sign of life of a rank, once a second and at every change of state; it does not mean progress."""

    rank: Rank
    at_ns: Moment
    state: Name
    """`starting`, `running`, `paused` or `ended`."""
    activity: Label
    """Current activity of the main thread: a phase of the start ("imports", "rendezvous") or of a step."""
    step: Count
    """Optimizer steps completed."""
    step_at_ns: Moment | None
    """Time at which the last step was completed."""
    seq: Count
    """Number of the newest `Step` record, so that a subscriber notices the records that it missed."""
    memory_bytes: Count | None = None
    """Device memory of this process on an accelerator, resident memory on the CPU."""
    memory_total_bytes: Count | None = None
    cpu_percent: Amount | None = None
    """CPU of this process and its children (data workers); 100 is one core."""
    device_percent: Amount | None = None
    device: Name | None = None
    """In torch's spelling: `cpu`, `cuda:0`."""
    backend: Name | None = None
    torch_version: Name | None = None
    total_steps: Whole | None = None
    """Steps that the script announced with `ddptop.agent.start`."""
    note: Line | None = None
    """One line by the script about itself, for example that its data is synthetic."""
    mechanism: Label | None = None
    """How collectives are observed: `process-group hooks`, or None where they are not."""
    outstanding: Count = 0
    """Collectives called and not complete."""
    dropped: Count = 0
    """Records lost to overflow, oldest first."""
    refused: Count = 0
    """Messages that this agent could not read."""
    faults: Count = 0
    """Errors inside the agent; the training goes on without the part that failed."""
    fault: Line | None = None
    """The last of these errors, one line."""
    health: Line | None = None
    """A problem in this rank's numbers: `loss is nan since step 123`."""
    timed_every: Count = 1
    """The collectives of one step in so many are timed; more than 1 where there are too many of them to time all."""
    held_at_ns: Moment | None = None
    """Time from which the rank has been held at the end of `step`. None: it is not held."""
    timeout_s: Amount | None = None
    """Timeout of collectives in the default process group. None: there is no group yet."""
    checkpoints: bool = False
    """True once the script has registered a function with `ddptop.agent.on_checkpoint`."""
    coordinates: dict[Name, Whole] | None = None
    """Position of the rank, by its script: `{"data": 0, "tensor": 1}` on a device mesh."""
    generation: Count | None = None
    """Restart count of the group when this process began. None: the agent is of an older version."""


class Steps(_Message, frozen=True, tag="steps"):
    """Step records of one rank, oldest first."""

    rank: Rank
    steps: tuple[Step, ...]
    generation: Count = 0
    """Restart count of the group when the rank's process began; each process numbers its records anew."""


class EncodedSteps(_Message, frozen=True, tag="steps"):
    """A `Steps` message whose records stay encoded; other processes read it as `Steps`."""

    rank: Rank
    steps: tuple[msgspec.Raw, ...]
    generation: Count = 0


class Numbered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The number of a `Step`, without the rest of it."""

    seq: Count


class NumberedSteps(_Message, frozen=True, tag="steps"):
    """A `Steps` message of which only the numbers are read: enough to store it, at a tenth of the cost."""

    rank: Rank
    steps: tuple[Numbered, ...]
    generation: Count = 0


class Summary(_Message, frozen=True, tag="summary"):
    """Means over a rank's newest steps, once a second: enough for a view of many ranks."""

    rank: Rank
    number: Count
    """Consecutive number of the summary, so that a gap can be noticed."""
    end_at_ns: Moment
    """End of the last of these steps."""
    step: Count
    """Number of that step."""
    seq: Count
    """Number of its record."""
    steps: Count
    """Steps since the previous summary."""
    wall_ns: Span
    """Mean over these steps of the time of one; so are all times here."""
    data_ns: Span
    forward_ns: Span
    backward_ns: Span
    optimizer_ns: Span
    wait_ns: Span | None
    other_ns: Span
    loss: float | None = None
    """The last loss known."""
    samples: Amount | None = None
    """Mean number of samples of a step, over the steps where it is known."""
    starved_ns: Span | None = None
    p50_ns: Span | None = None
    """Median latency of the recent all-reduces."""
    p99_ns: Span | None = None
    metrics: dict[str, float] = {}
    """Newest value of each name that was given to `ddptop.agent.log`."""
    generation: Count = 0
    """Restart count of the group at these steps."""


class Event(_Message, frozen=True, tag="event"):
    """A line of the run's event list."""

    at_ns: Moment
    text: Line
    rank: Rank | None = None
    level: Name = "info"
    """`info`, `warning` or `error`."""
    action: Name = ""
    """The action that somebody carried out: `pause`, `step`, `kill`. Empty where the event is not an action."""
    who: Label = ""
    """The author of the action: `dashboard of ada on pts/3`."""


class RunState(_Message, frozen=True, tag="run"):
    """State of the whole run, sent by the observer once a second and at every change."""

    at_ns: Moment
    state: Name
    """`starting`, `running`, `killing`, `finished`, `stopped`, `failed` or `killed`."""
    torchrun_pid: Pid | None = None
    exit_code: Whole | None = None
    cause: Line | None = None
    """First cause of a failure, one line."""
    refused: Count = 0
    """Messages that the observer could not read."""
    ending: Line = ""
    """While processes are being ended: those that are left, and the time of the escalation's next stage."""


class Verdict(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One thing that is wrong with the run, from its beginning to its end, as the observer judges it."""

    number: Count
    """Consecutive number of the verdict in its run, from 1: the same as long as the same is told."""
    kind: Name
    """`slow_rank`, `taking_turns`, `unequal_work`, `input_bound`, `communication_bound`, `memory_creep` or `health`."""
    text: Line
    """The whole of it, one line; its figures may change while it goes on."""
    since_at_ns: Moment
    until_at_ns: Moment | None = None
    """None: it goes on."""
    rank: Rank | None = None
    """The rank that is to blame, None where it is all of them or none."""
    phase: Name | None = None
    """The phase of `PHASES` that is to blame."""
    cost_ms: Amount | None = None
    """Milliseconds of each step."""
    share: Amount | None = None
    """Part of the step that this is."""
    since_step: Count | None = None
    confidence: Amount | None = None
    """From 0 to 1: the share of the steps looked at that agree."""
    every: Count | None = None
    """It comes once in so many steps. None: in every step, or at random."""
    generation: Count = 0
    """Restart count of the group."""


class Verdicts(_Message, frozen=True, tag="verdicts"):
    """All verdicts of this moment, sent by the observer at every change, once a second, and to each new subscriber."""

    at_ns: Moment
    verdicts: tuple[Verdict, ...] = ()
    """The one that matters most first. Empty: nothing is wrong, or nothing is known yet."""


class Ranks(_Message, frozen=True, tag="ranks"):
    """The newest of each of some ranks, by the observer: once a second in a large group, and to each new subscriber.

    A large group takes several of them, so that each is within `MAX_MESSAGE_BYTES`.
    """

    at_ns: Moment
    hellos: tuple[Hello, ...] = ()
    beats: tuple[Beat, ...] = ()
    summaries: tuple[Summary, ...] = ()


class EncodedRanks(_Message, frozen=True, tag="ranks"):
    """A `Ranks` message whose parts stay encoded; other processes read it as `Ranks`."""

    at_ns: Moment
    hellos: tuple[msgspec.Raw, ...] = ()
    beats: tuple[msgspec.Raw, ...] = ()
    summaries: tuple[msgspec.Raw, ...] = ()


Telemetry = Hello | Beat | Steps | Summary | Event | RunState | Verdicts | Ranks


class Hold(_Message, frozen=True, tag="hold"):
    """Phase one of a pause: the rank promises not to pass the end of its current step.

    Answered with `Reply.step`, the promised step. The promise lapses after `lease_ms`.
    """

    id: Whole
    token: Label
    lease_ms: Count = 4000
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Commit(_Message, frozen=True, tag="commit"):
    """Phase two: the rank is held at the boundary after `step`. Refused once the promise has lapsed.

    With a lease, the promise moves to `step` and is renewed: the group is held as long as
    the controller lives. Without a lease the hold lasts until `Resume`.
    """

    id: Whole
    token: Label
    step: Count
    lease_ms: Count = 0
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Resume(_Message, frozen=True, tag="resume"):
    """End the hold of the rank, whoever paused it."""

    id: Whole
    serial: Count = 0
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Fill(_Message, frozen=True, tag="fill"):
    """Send the step records from `first_seq` on that the rank still has: `Steps` messages, then a `Reply`."""

    id: Whole
    first_seq: Count = 0
    limit: Count = 20_000
    """The answer has at most so many of the newest records, and so a few megabytes."""
    earlier: Count = 0
    """Number of older records to send before these, evenly spread: enough for a curve."""


class Query(_Message, frozen=True, tag="query"):
    """Ask for the state of the rank: `Reply.step` is the steps completed, `Reply.done` whether the rank is held."""

    id: Whole


# An action that either all ranks or none must carry out is decided once, in the run directory (`agent.run.decisions`).
# Each rank reads it there; the message makes it read at once. `serial` is the number of the decision, 0 for none.


class Keep(_Message, frozen=True, tag="keep"):
    """Decision: the hold under this lease lasts until `Resume`."""

    id: Whole
    token: Label
    step: Count
    serial: Count = 0


class Advance(_Message, frozen=True, tag="advance"):
    """Decision: ranks that a decision holds go on to the end of `step`, and are held there."""

    id: Whole
    step: Count
    serial: Count = 0


class End(_Message, frozen=True, tag="end"):
    """Decision: the script of every rank ends where it is held, with its `finally` clauses and exit code 0."""

    id: Whole
    who: Label
    serial: Count = 0


class Lapse(_Message, frozen=True, tag="lapse"):
    """Decision, made by the first rank whose lease runs out: the hold under this lease is over."""

    id: Whole
    token: Label


class Save(_Message, frozen=True, tag="save"):
    """Call the script's checkpoint function where the rank is held, and renew the lease.

    The controller repeats the message with the same `token` while the `Reply` is `pending`; the function runs once.
    """

    id: Whole
    token: Label
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Note(_Message, frozen=True, tag="note"):
    """Publish an event: an action on the run and its outcome."""

    id: Whole
    event: Event
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Kill(_Message, frozen=True, tag="kill"):
    """To the observer: end the run, one of its ranks or processes, or only send them a signal."""

    id: Whole
    grace_s: float
    rank: Rank | None = None
    who: Label = ""
    """The author of the action, for the event list: `dashboard of ada on pts/3`."""
    pid: Pid | None = None
    """End only this process; refused where it does not belong to the run."""
    started: float | None = None
    """Start time of that process (`Process.started` of `agent.run.identity`): a later one may have its pid."""
    signal: Pid | None = None
    """Send only this signal, instead of TERM, a grace period and KILL."""
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class History(_Message, frozen=True, tag="history"):
    """To the observer: ask for a number of some ranks over a stretch of steps or of time, as columns of a plot."""

    id: Whole
    metric: Label = ""
    """A name of `agent.observer.history.numbers`. Empty: the answer is the `Extent` alone."""
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


Expiring = Hold | Commit | Resume | Save | Note | Kill
"""Commands with a deadline: refused after `until_ns`, by the clock of `agent.control.deadline`; None: no deadline.

`asked_ns` is the time of sending, by the same clock.  `Keep`, `Advance` and `End` have no deadline: they announce a
decision, which every rank also reads by itself.
"""

Command = Hold | Commit | Resume | Fill | Query | Kill | Keep | Advance | End | Lapse | Save | Note | History


class Reply(_Message, frozen=True, tag="reply"):
    """The one answer to a command."""

    id: Whole
    done: bool
    text: str = ""
    """The outcome, or the reason for the refusal."""
    step: Count | None = None
    pending: bool = False
    """Ask again: the function of a `Save` still runs, or too many others wait for the answer to a `Fill`."""
    took_ns: Moment | None = None
    """`Save`: the time that the script's function took."""
    kept: bool = False
    """`Query`: the rank is held until `Resume`, without a lease."""
    checkpoints: bool = False
    """`Query`: the script has registered a checkpoint function."""
    timeout_s: Amount | None = None
    """`Query`: timeout of collectives in the default process group."""


class Extent(_Message, frozen=True, tag="extent"):
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


class HistoryPart(_Message, frozen=True, tag="history_part"):
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


Answer = Steps | Reply
HistoryAnswer = Extent | HistoryPart | Reply

_encoder = msgspec.msgpack.Encoder()
_telemetry: msgspec.msgpack.Decoder[Telemetry] = msgspec.msgpack.Decoder(Telemetry)
_numbers: msgspec.msgpack.Decoder[NumberedSteps] = msgspec.msgpack.Decoder(NumberedSteps)
_command: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_history: msgspec.msgpack.Decoder[HistoryAnswer] = msgspec.msgpack.Decoder(HistoryAnswer)

Unreadable = msgspec.MsgspecError
"""Raised by the `read_*` functions for anything that is not a message of this protocol."""

MAX_COMMAND_BYTES: Final = 4096
"""Bound on a command; set as MAXMSGSIZE on the side that binds."""
MAX_RECORD_BYTES: Final = 256 << 10
"""Bound on one `Step`; a larger one is sent without its collectives and metrics."""
MAX_MESSAGE_BYTES: Final = 1 << 20
"""Bound on what a rank or the observer sends; set as MAXMSGSIZE on the side that connects.

ZeroMQ closes the connection to a peer that sends more; `agent.control.listening` opens another.
"""
UNREAD: Final = 300
"""Messages that may be queued on either side of a connection: those of a rank in half a minute."""


def topic_of(topic: bytes, rank: int) -> bytes:
    """Return the topic under which the observer repeats what a rank publishes under `topic`: `steps/00017`."""
    return b"%s/%05d" % (topic, rank)


def encode(message: Telemetry | EncodedSteps | EncodedRanks | Command | Answer | HistoryAnswer | Step) -> bytes:
    """Return the msgpack form of any message."""
    return _encoder.encode(message)


_T = TypeVar("_T")


def _typed(decoder: msgspec.msgpack.Decoder[_T], payload: bytes) -> _T:
    # Deep nesting raises RecursionError, and bad UTF-8 UnicodeDecodeError.
    try:
        return decoder.decode(payload)
    except (RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(str(error)) from error


def read_telemetry(payload: bytes) -> Telemetry:
    """Decode a message of a PUB socket and clean its text; raises `Unreadable`."""
    message = _typed(_telemetry, payload)
    # Most messages are steps.
    if message.__class__ is Steps:
        return _cleaned_steps(message)
    if isinstance(message, Ranks):
        # The names of metrics in it are cleaned as those of a summary that comes alone.
        message = msgspec.structs.replace(message, summaries=tuple(map(_cleaned_summary, message.summaries)))
    return _cleaned_summary(message) if isinstance(message, Summary) else cleaned(message)


def read_numbers(payload: bytes) -> NumberedSteps:
    """Decode the numbers of a `Steps` message; raises `Unreadable`, but not for what is wrong in the rest of it."""
    return _typed(_numbers, payload)


def read_command(payload: bytes) -> Command:
    """Decode a message of a controller and clean its text; raises `Unreadable`."""
    return cleaned(_typed(_command, payload))


def read_answer(payload: bytes) -> Answer:
    """Decode an answer of a ROUTER socket and clean its text; raises `Unreadable`."""
    answer = _typed(_answer, payload)
    return _cleaned_steps(answer) if isinstance(answer, Steps) else cleaned(answer)


def read_history(payload: bytes) -> HistoryAnswer:
    """Decode an answer to `History`: its tables have the size that they claim, its text is clean. Raises `Unreadable`.

    The values in the tables are any that four bytes can be; see `agent.observer.history.columns`.
    """
    answer = _typed(_history, payload)
    if isinstance(answer, HistoryPart):
        _check_tables(answer)
    return cleaned(answer)


def _check_tables(part: HistoryPart) -> None:
    rows, rest = divmod(len(part.ranks), 4)
    size = 4 * rows * part.columns
    others = (part.low, part.high, part.count, part.at)
    if rest or len(part.mean) != size or any(len(table) not in (0, size) for table in others):
        raise msgspec.ValidationError("a table does not have the size of its rows and columns")
    if part.by == "step" and not all(len(table) == size for table in others):
        raise msgspec.ValidationError("a table is missing")
    if (part.begin + part.columns) * part.width > 1 << 54:
        raise msgspec.ValidationError("the columns are beyond what can be counted")


# Most messages are steps, ten a second of every rank: the names in a step are checked together, and once.
_plain_calls: Final[set[str]] = set()
"""Names of all calls of a step, joined, that need no cleaning; they are the same from step to step."""
_plain_metrics: Final[set[tuple[str, ...]]] = set()
_MOST_PLAIN: Final = 4096
_MOST_NAMES: Final = 100


def _cleaned_steps(message: Steps) -> Steps:
    for step in message.steps:
        metrics, calls = step.metrics, step.collectives
        if metrics and (names := tuple(metrics)) not in _plain_metrics and not _are_plain_metrics(names):
            break
        if calls and not _have_plain_names(calls):
            break
    else:
        return message
    return msgspec.structs.replace(message, steps=tuple(map(_cleaned_step, message.steps)))


def _have_plain_names(calls: tuple[Collective, ...]) -> bool:
    # The decoder has checked the length of each.
    ops, groups = "".join([call.op for call in calls]), "".join([call.group for call in calls])
    return (ops in _plain_calls or _are_plain(ops)) and (groups in _plain_calls or _are_plain(groups))


def _cleaned_step(step: Step) -> Step:
    calls = tuple(map(cleaned, step.collectives))
    return msgspec.structs.replace(step, collectives=calls, metrics=_cleaned_metrics(step.metrics))


def _cleaned_summary(summary: Summary) -> Summary:
    if not summary.metrics or _are_plain_metrics(tuple(summary.metrics)):
        return summary
    return msgspec.structs.replace(summary, metrics=_cleaned_metrics(summary.metrics))


def _cleaned_metrics(metrics: dict[str, float]) -> dict[str, float]:
    return {clean_name(name): value for name, value in metrics.items()}


def _are_plain(names: str) -> bool:
    found = is_plain(names)
    if found and len(names) < _MOST_PLAIN and len(_plain_calls) < _MOST_PLAIN:
        _plain_calls.add(names)
    return found


def _are_plain_metrics(names: tuple[str, ...]) -> bool:
    if names in _plain_metrics:
        return True
    found = all(clean_name(name) == name for name in names)
    if found and len(names) < _MOST_NAMES and len(_plain_metrics) < _MOST_PLAIN:
        _plain_metrics.add(names)
    return found
