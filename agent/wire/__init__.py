"""Every message that crosses a ddptop socket, on one page.

Imports msgspec and how text is cleaned, nothing else, so that both ends, and any third one, can speak it.
What is read here is clean and bounded, whoever sent it: text by `incoming`, whole numbers by their types.
Telemetry goes out on PUB sockets as two frames, `[topic, payload]`; commands travel
DEALER -> ROUTER as one payload and are answered by one `Reply` (and, for `Fill`, by any
number of `Steps` before it), unless the answer cannot be delivered: then it is dropped.
Times are wall-clock nanoseconds (`time.time_ns`) where the name says `at_ns`, durations
otherwise; every field carries its unit in its name.  `None` means "not known", never zero.
Fields may be added only at the end and only with a default; anything else raises `PROTOCOL`.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec

from ddptop.agent.wire.incoming import Label, Line, Name, clean_name, cleaned, is_plain

PROTOCOL: Final = 1

PHASES: Final = ("data", "forward", "backward", "optimizer", "wait", "other")
"""Exclusive phases of a step; together they make up its wall time."""

# Topics let a subscriber leave out what it does not look at: ZeroMQ filters at the sender.
TOPIC_HELLO: Final = b"hello"
TOPIC_BEAT: Final = b"beat"
TOPIC_STEPS: Final = b"steps"
TOPIC_SUMMARY: Final = b"summary"
TOPIC_EVENT: Final = b"event"
TOPIC_RUN: Final = b"run"


# A number beyond its range is no message of ours.

MOST_RANKS: Final = 65_536
"""Ranks of a run at most; a record or a message that tells of more is damaged."""
Rank = Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
Pid = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Wall-clock nanoseconds, to the year 2262."""
Span = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]
"""A duration in nanoseconds, up to 104 days; below zero where a clock was set back."""
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""Bytes, or samples, of one step: sums of them stay within what a float and 64 bits hold."""
Whole = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A number that the script gives."""
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
"""Finite."""
Called = Annotated[str, msgspec.Meta(max_length=100, extra={"limit": 100})]
"""A name that is in every step: the agent keeps it short."""


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=True):
    """Base of all messages: a tagged msgpack array, about 130 bytes for a step."""


class Collective(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One collective as this rank saw it."""

    op: Called
    """Name in lower case, as torch.distributed spells it: `all_reduce`, `broadcast`."""
    entered_ns: Span
    """When this rank called it, counted from the start of the step."""
    duration_ns: Span | None
    """From the call to completion on this rank; holds the wait for peers. None: not observed."""
    bytes: Size
    """Size of this rank's input."""
    in_flight: Count
    """Collectives under way on this rank when this one was called, itself included."""
    group: Called = ""
    """Process group, the same name on all its ranks; `0` is the default group."""
    blocking: bool = False
    """True where the rank's main thread stood in it from the call to completion."""
    queued_ns: Span = 0
    """Of the duration, what went by before the backend took it up: gloo works on two at a time."""
    estimated: bool = False
    """True where `queued_ns` is modelled, where completion was seen only when it was waited for, and where
    `in_flight` counts calls that may have been done."""
    on_device: bool = False
    """True where the duration is the device's own, by events; `entered_ns` is when the host asked for it."""


class Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One optimizer step of one rank. The six phases are exclusive, and those of our agent add up to `wall_ns`."""

    seq: Count
    """Consecutive number of the record, so that a gap is seen."""
    step: Count
    """Optimizer steps completed by the end of this record, counted from 1; one that GradScaler skips counts."""
    end_at_ns: Moment
    wall_ns: Span
    data_ns: Span
    forward_ns: Span
    backward_ns: Span
    optimizer_ns: Span
    wait_ns: Span | None
    """Time in which this rank's main thread was blocked in a collective. None: collectives are not seen."""
    other_ns: Span
    loss: float | None = None
    samples: Size | None = None
    """Samples this rank drew from its loader for this step."""
    collectives: tuple[Collective, ...] = ()
    metrics: dict[str, float] = {}
    """What the script gave to `ddptop.agent.log` during this step."""
    device_ns: tuple[Span, ...] | None = None
    """Time on the device's own time line in data, forward, backward, optimizer and other, by events on the
    stream of the training thread; what waits for peers or for the host is inside. None: not on CUDA, not known."""
    starved_ns: Span | None = None
    """Time in which the training thread could have run but had no core, wherever in the step; a batch of records
    shares one reading. None: the system does not tell."""
    lr: float | None = None
    """Learning rate of the optimizer's first parameter group. None: a tensor, or not there."""


class Hello(_Message, frozen=True, tag="hello"):
    """Who a rank is. Sent at the start and again to everybody when somebody new subscribes."""

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
    """Sign of life, once a second and at every change of state. Life, not progress."""

    rank: Rank
    at_ns: Moment
    state: Name
    """`starting`, `running`, `paused` or `ended`."""
    activity: Label
    """What the main thread does now: a start phase ("imports", "rendezvous") or a step phase."""
    step: Count
    """Optimizer steps completed."""
    step_at_ns: Moment | None
    """When the last step was completed."""
    seq: Count
    """Number of the newest `Step` record, so that a subscriber sees what it missed."""
    memory_bytes: Count | None = None
    """Device memory of this process on an accelerator, resident memory on the CPU."""
    memory_total_bytes: Count | None = None
    cpu_percent: Amount | None = None
    """CPU of this process and its children (data workers); 100 is one core."""
    device_percent: Amount | None = None
    device: Name | None = None
    """As torch spells it: `cpu`, `cuda:0`."""
    backend: Name | None = None
    torch_version: Name | None = None
    total_steps: Whole | None = None
    """Steps that the script announced with `ddptop.agent.start`."""
    note: Line | None = None
    """One line by the script about itself, for example that its data is synthetic."""
    mechanism: Label | None = None
    """How collectives are seen: `process-group hooks`, or None where they are not."""
    outstanding: Count = 0
    """Collectives entered and not finished."""
    dropped: Count = 0
    """Records lost to overflow, oldest first."""
    refused: Count = 0
    """Messages that this agent could not read."""
    faults: Count = 0
    """Errors inside the agent; the training goes on without what failed."""
    fault: Line | None = None
    """The last of them, one line."""
    health: Line | None = None
    """What is wrong with this rank's numbers: `loss is nan since step 123`."""
    timed_every: Count = 1
    """One step of so many has its collectives timed; more than 1 where they are too dense to time them all."""
    held_at_ns: Moment | None = None
    """Since when the rank is held at the end of `step`. None: it is not."""
    timeout_s: Amount | None = None
    """Timeout of collectives in the default process group. None: there is no group yet."""
    checkpoints: bool = False
    """True once the script has registered a function with `ddptop.agent.on_checkpoint`."""
    coordinates: dict[Name, Whole] | None = None
    """Where the rank stands, as its script says: `{"data": 0, "tensor": 1}` on a device mesh."""
    generation: Count | None = None
    """Restart count of the group when this process began. None: an agent that does not tell."""


class Steps(_Message, frozen=True, tag="steps"):
    """Step records of one rank, oldest first."""

    rank: Rank
    steps: tuple[Step, ...]
    generation: Count = 0
    """Of the rank's process; the numbers of the records begin anew with each."""


class Summary(_Message, frozen=True, tag="summary"):
    """What a rank's newest steps were like, once a second: all that a view of many ranks needs of most of them."""

    rank: Rank
    number: Count
    """Consecutive number of the summary, so that a gap is seen."""
    end_at_ns: Moment
    """End of the last of these steps."""
    step: Count
    """Number of that step."""
    seq: Count
    """Number of its record."""
    steps: Count
    """Steps since the summary before."""
    wall_ns: Span
    """Of one step, as all times here: a mean over these steps."""
    data_ns: Span
    forward_ns: Span
    backward_ns: Span
    optimizer_ns: Span
    wait_ns: Span | None
    other_ns: Span
    loss: float | None = None
    """The last one known."""
    samples: Amount | None = None
    """A step, where they are known."""
    starved_ns: Span | None = None
    p50_ns: Span | None = None
    """All-reduce latency over the recent calls, median."""
    p99_ns: Span | None = None
    metrics: dict[str, float] = {}
    """Newest value of everything given to `ddptop.agent.log` so far."""
    generation: Count = 0
    """Restart count of the group when they were done."""


class Event(_Message, frozen=True, tag="event"):
    """Something worth a line in the run's event list."""

    at_ns: Moment
    text: Line
    rank: Rank | None = None
    level: Name = "info"
    """`info`, `warning` or `error`."""
    action: Name = ""
    """What somebody did: `pause`, `step`, `kill`. Empty for what happened by itself."""
    who: Label = ""
    """Who did it: `dashboard of ada on pts/3`."""


class RunState(_Message, frozen=True, tag="run"):
    """The supervisor's word on the run as a whole, once a second and at every change."""

    at_ns: Moment
    state: Name
    """`starting`, `running`, `killing`, `finished`, `stopped`, `failed` or `killed`."""
    torchrun_pid: Pid | None = None
    exit_code: Whole | None = None
    cause: Line | None = None
    """Why it failed: the first cause, one line."""
    refused: Count = 0
    """Messages that the supervisor could not read."""
    ending: Line = ""
    """While something is being ended: the processes that are left, and when the escalation goes on."""


Telemetry = Hello | Beat | Steps | Summary | Event | RunState


class Hold(_Message, frozen=True, tag="hold"):
    """Phase one of a pause: promise not to pass the step now in work.

    Answered with `Reply.step`, the promised step. The promise lapses after `lease_ms`.
    """

    id: Whole
    token: Label
    lease_ms: Count = 4000
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Commit(_Message, frozen=True, tag="commit"):
    """Phase two: stay at the boundary after `step`. Refused once the promise has lapsed.

    With a lease the promise is only moved to `step`, and renewed: the group is held as long as
    the controller lives. Without one it is kept until `Resume`.
    """

    id: Whole
    token: Label
    step: Count
    lease_ms: Count = 0
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Resume(_Message, frozen=True, tag="resume"):
    """Let go, whoever committed the pause."""

    id: Whole
    serial: Count = 0
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Fill(_Message, frozen=True, tag="fill"):
    """Send the step records from `first_seq` on that the rank still holds; `Steps` messages, then a `Reply`."""

    id: Whole
    first_seq: Count = 0
    limit: Count = 20_000
    """Newest records only, so that an answer stays within a few megabytes."""
    earlier: Count = 0
    """Of the records before those, send so many, evenly spread: enough for a curve."""


class Query(_Message, frozen=True, tag="query"):
    """Answered with the steps completed and, in `done`, whether the rank is held."""

    id: Whole


# What all ranks must do or none is decided once, in the run directory (see `decisions`), and sent to
# each of them only so that it acts at once. `serial` is the number of the decision; 0 was not decided.


class Keep(_Message, frozen=True, tag="keep"):
    """Decision: the hold under this lease lasts until `Resume`."""

    id: Whole
    token: Label
    step: Count
    serial: Count = 0


class Advance(_Message, frozen=True, tag="advance"):
    """Decision: from a kept hold go on to the end of `step`, and stay there."""

    id: Whole
    step: Count
    serial: Count = 0


class End(_Message, frozen=True, tag="end"):
    """Decision: the script of every rank ends where it is held, in good order and with exit code 0."""

    id: Whole
    who: Label
    serial: Count = 0


class Lapse(_Message, frozen=True, tag="lapse"):
    """Decision, made by the first rank whose lease runs out: the hold under this lease is over."""

    id: Whole
    token: Label


class Save(_Message, frozen=True, tag="save"):
    """Call the script's checkpoint function where the rank is held; renews the lease.

    Asked again with the same `token` until the `Reply` is no longer `pending`; the function is called once.
    """

    id: Whole
    token: Label
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Note(_Message, frozen=True, tag="note"):
    """Publish an event: what somebody did with the run and what came of it."""

    id: Whole
    event: Event
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


class Kill(_Message, frozen=True, tag="kill"):
    """To the supervisor: end the run, one rank or one process of it; or send it a signal and no more."""

    id: Whole
    grace_s: float
    rank: Rank | None = None
    who: Label = ""
    """Who asks, for the event list: `dashboard of ada on pts/3`."""
    pid: Pid | None = None
    """One process instead, refused where it is none of the run's."""
    started: float | None = None
    """When that process began, in the terms of `agent.identity`, so that no other of its number is meant."""
    signal: Pid | None = None
    """This signal and no other, instead of TERM, a grace period and KILL."""
    asked_ns: Whole | None = None
    until_ns: Whole | None = None


Expiring = Hold | Commit | Resume | Save | Note | Kill
"""Refused after `until_ns`, by the clock of `agent.deadline`; `asked_ns` is when it was sent, None: no deadline.

`Keep`, `Advance` and `End` have none: they only tell of a decision, which every rank reads by itself.
"""

Command = Hold | Commit | Resume | Fill | Query | Kill | Keep | Advance | End | Lapse | Save | Note


class Reply(_Message, frozen=True, tag="reply"):
    """The one answer to a command."""

    id: Whole
    done: bool
    text: str = ""
    """What was done, or the reason for the refusal."""
    step: Count | None = None
    pending: bool = False
    """`Save`: under way; ask again."""
    took_ns: Moment | None = None
    """`Save`: how long the script's function took."""
    kept: bool = False
    """`Query`: held until `Resume`, under nobody's lease."""
    checkpoints: bool = False
    """`Query`: the script has registered a checkpoint function."""
    timeout_s: Amount | None = None
    """`Query`: timeout of collectives in the default process group."""


Answer = Steps | Reply

_encoder = msgspec.msgpack.Encoder()
_telemetry: msgspec.msgpack.Decoder[Telemetry] = msgspec.msgpack.Decoder(Telemetry)
_command: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_answer: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)

Unreadable = msgspec.MsgspecError
"""Raised by the `read_*` functions for anything that is not a message of this protocol."""

MAX_COMMAND_BYTES: Final = 4096
"""Bound on a command; set as MAXMSGSIZE on the side that binds."""
MAX_RECORD_BYTES: Final = 256 << 10
"""Bound on one `Step`; a larger one is sent without its collectives and metrics."""
MAX_MESSAGE_BYTES: Final = 1 << 20
"""Bound on what a rank or the supervisor sends; set as MAXMSGSIZE on the side that connects.

ZeroMQ gives up the connection to who sends more; `listening` makes another.
"""
UNREAD: Final = 300
"""Messages that wait on either side of a connection for who does not read them: half a minute of a rank's."""


def encode(message: Telemetry | Command | Answer | Step) -> bytes:
    """Return the msgpack form of any message."""
    return _encoder.encode(message)


_T = TypeVar("_T")


def _typed(decoder: msgspec.msgpack.Decoder[_T], payload: bytes) -> _T:
    # Deep nesting raises RecursionError, bad UTF-8 UnicodeDecodeError: both are "not our message".
    try:
        return decoder.decode(payload)
    except (RecursionError, UnicodeDecodeError) as error:
        raise Unreadable(str(error)) from error


def read_telemetry(payload: bytes) -> Telemetry:
    """Decode what a PUB socket sent, its text clean; raises `Unreadable`."""
    message = _typed(_telemetry, payload)
    # Steps are most of what comes.
    if message.__class__ is Steps:
        return _cleaned_steps(message)
    return _cleaned_summary(message) if isinstance(message, Summary) else cleaned(message)


def read_command(payload: bytes) -> Command:
    """Decode what a controller sent, its text clean; raises `Unreadable`."""
    return cleaned(_typed(_command, payload))


def read_answer(payload: bytes) -> Answer:
    """Decode what a ROUTER socket answered, its text clean; raises `Unreadable`."""
    answer = _typed(_answer, payload)
    return _cleaned_steps(answer) if isinstance(answer, Steps) else cleaned(answer)


# Steps are most of what comes, ten a second of every rank: the names in them are seen to together.
_plain_calls: Final[set[str]] = set()
"""Names of the calls of a step, one after the other, with nothing to clean: the same from step to step."""
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
    # How long each may be, the decoder has seen to.
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
