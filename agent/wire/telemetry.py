"""What ranks publish on PUB sockets, the topics under which they do, and the verdicts on them.

A message goes out as two frames, `[topic, payload]`.
"""

# Without `annotations` from `__future__`, each of which msgspec would compile: every command and rank waits for that.
import math
import re
from typing import Annotated, Final

import msgspec

from ddptop.agent.wire.incoming import Label, Line, Name
from ddptop.agent.wire.message import Amount, Called, Count, Message, Moment, Pid, Rank, Size, Span, Whole
from ddptop.agent.wire.vocabulary.verdict_kinds import VERDICT_KINDS

PHASES: Final = ("data", "copy", "forward", "backward", "optimizer", "wait", "other")
"""Exclusive phases of a step; together they make up its wall time. `copy` is that of batches, and other tensors, from
the host's memory to the device's."""

HELD: Final = frozenset({"paused", "held"})
"""States of a rank, or a run, in which it makes no steps because of us."""

DEVICE_PHASES: Final = ("data", "forward", "backward", "optimizer", "other", "copy")
"""The phases of `Step.device_ns`, in their order there; an older agent leaves out the last."""

# A subscriber names the topics that it needs: ZeroMQ filters at the sender.
TOPIC_HELLO: Final = b"hello"
TOPIC_BEAT: Final = b"beat"
TOPIC_STEPS: Final = b"steps"
TOPIC_BATCH: Final = b"batch"
"""The records of a second in one message of `Steps`: for a subscriber to very many ranks, instead of `TOPIC_STEPS`."""
TOPIC_SUMMARY: Final = b"summary"
TOPIC_EVENT: Final = b"event"
TOPIC_CHECKSUMS: Final = b"checksums"
TOPIC_RECORD: Final = b"record"
"""Between the observers of a run on several hosts only; see `Recorded`."""

EACH_RECORD: Final = 64
"""Ranks of a group at most of which every record is published, judged and shown as it comes. Of a larger one these are
summaries, and only the records of those ranks that somebody looks at."""


def topic_of(topic: bytes, rank: int) -> bytes:
    """Return the topic of an observer that is of one rank alone: `rank/00017`."""
    return b"%s/%05d" % (topic, rank)


MOST_SUMS: Final = 4096
"""Tensors of a rank that are compared at most; further ones are left out, and that is said."""
MOST_MODULES: Final = 64
"""Modules of a rank that are compared at most."""


class ModuleSums(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The checksums of one module, or of the parameters of one optimizer that are in no such module."""

    group: Called
    """Process group over which DDP keeps the module the same. Empty: it is not wrapped in DDP, and may differ."""
    number: Count
    """Consecutive number of the module in its group, from 0; the same on all ranks of the group."""
    steps: Count
    """Optimizer steps that these parameters have made: only checksums after the same number are comparable."""
    layout: Called
    """Digest of names, shapes, types and kind of device: only checksums of the same layout are comparable."""
    sums: Annotated[bytes, msgspec.Meta(max_length=8 * MOST_SUMS)]
    """A little-endian `int64` for each tensor, in the order of `names`."""
    members: Count = 0
    """Ranks of the group. 0: it is no group's."""
    names: Annotated[tuple[Called, ...], msgspec.Meta(max_length=MOST_SUMS)] = ()
    """Names of the tensors. Empty: they were sent before, and are sent again from time to time."""
    sharded: Count = 0
    """Parameters of which the rank has only a part (DTensor, FSDP); they are not compared."""
    left_out: Count = 0
    """Tensors that are not compared for another reason: beyond `MOST_SUMS`, sparse, or on another kind of device."""


class Checksums(Message, frozen=True, tag="checksums"):
    """All checksums that a rank has computed at the end of one step."""

    rank: Rank
    step: Count
    """Optimizer steps completed."""
    at_ns: Moment
    """End of that step."""
    modules: Annotated[tuple[ModuleSums, ...], msgspec.Meta(max_length=MOST_MODULES)] = ()
    took_ns: Span = 0
    """Time that the training thread spent on them."""
    every: Count = 0
    """They come after so many steps of the parameters. 0: only on request."""
    generation: Count = 0
    """Restart count of the group when the rank's process began."""


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
    """One optimizer step of one rank. The seven phases are exclusive, and those of our agent add up to `wall_ns`."""

    seq: Count
    """Consecutive number of the record, so that a gap can be noticed."""
    step: Count
    """Optimizer steps completed by the end of this record, counted from 1; a step that GradScaler skips counts."""
    end_at_ns: Moment
    wall_ns: Span
    data_ns: Span | None
    forward_ns: Span | None
    backward_ns: Span | None
    optimizer_ns: Span | None
    """None of these four: such a phase was never seen. Its time, if it has any, is in `other_ns`."""
    wait_ns: Span | None
    """Time in which this rank's training thread was blocked in a collective. None: collectives are not observed."""
    other_ns: Span
    loss: float | None = None
    samples: Size | None = None
    """Samples this rank drew from its loader for this step."""
    collectives: tuple[Collective, ...] = ()
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    """Values that the script gave to `ddptop.agent.log` during this step."""
    device_ns: tuple[Span, ...] | None = None
    """Time on the device's own time line in each of `DEVICE_PHASES`, by events on the
    stream of the training thread; waits for peers or for the host are included. None: not on CUDA, not known."""
    starved_ns: Span | None = None
    """Time of the step in which the training thread was runnable but had no core; a batch of records
    shares one reading. None: the system does not report it."""
    lr: float | None = None
    """Learning rate of the optimizer's first parameter group. None: it is a tensor, or missing."""
    copy_ns: Span | None = None
    """Time in which the main thread copied tensors from the host to a device; a copy of memory that is not pinned waits
    for what the device has been given before. None: the training is not on a device, or the agent is older."""
    counted: Count = 0
    """Steps before this one, since the record before, that were only counted: the record stands for them, too."""
    counted_ns: Span = 0
    """Time of these, from boundary to boundary, without pauses."""
    tokens: Size | None = None
    """Tokens in these samples, padding included. None: they are no text, or not known to be."""


class Hello(Message, frozen=True, tag="hello"):
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


class Threads(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The threads among which a rank divides its work, and the cores that it may use."""

    within: Count
    """Threads of one operation, of torch's and of OpenMP's pool (`torch.get_num_threads`)."""
    between: Count
    """Threads for operations side by side (`torch.get_num_interop_threads`)."""
    cores: Amount
    """Cores that it is allowed to run on, or that the quota of its control group is worth, if that is less."""
    children: Count = 0
    """Child processes, such as data workers."""
    pins: Count = 0
    """Threads of data loaders that pin memory."""
    on: Label = ""
    """The cores, `0-3`, and the control group where its quota is less: ranks that have the same share them. Empty: not
    known."""


class Holding(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The hold of a rank at the end of a step, which it may still be on its way to."""

    limit: Count
    """That step."""
    token: Label
    """The action that holds the rank."""
    held: bool
    """True while the training thread waits there."""
    kept: bool
    """True where the hold lasts until `Resume`. False: it is under the lease of the action."""
    busy: bool = False
    """True while the training thread works there, as on a checkpoint."""


class Saved(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What came of a call of the script's checkpoint function."""

    done: bool
    text: Line
    """The path that it returned, empty where it returned none; or the exception that it raised."""
    took_ns: Moment
    step: Count = 0


class Beat(Message, frozen=True, tag="beat"):
    """Sign of life of a rank, once a second and at every change of state; it does not mean progress."""

    rank: Rank
    at_ns: Moment
    state: Name
    """`starting`, `running`, `paused`, `held` (for some work of ours) or `ended`."""
    activity: Label
    """Current activity of the main thread: a phase of the start ("imports", "rendezvous") or of a step, or the work
    that it is held for."""
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
    """Steps of the whole training: what the script announced with `ddptop.agent.start`, else by `total_by`."""
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
    communicated: bool | None = None
    """Whether the rank has called a collective, a send or a receive. None: it may have done so unseen."""
    released_at_ns: Moment | None = None
    """Time at which a pause of the rank ended last, by a resume or for a step. None: it was not held yet."""
    recorded_every: Count = 1
    """One step in so many is recorded; of the others the time alone is told, with the next record."""
    is_fixed: bool = False
    """True where the environment of the rank fixes `recorded_every`."""
    cost_ns: Span | None = None
    """CPU time of our hooks on the training thread in a recorded step, as measured now and then. None: not known."""
    counted_cost_ns: Span | None = None
    """The same of a step that is only counted."""
    record_ns: Span | None = None
    """CPU time of the agent's own thread for each record."""
    is_loss_unsure: bool = False
    """True where the last loss may be 1/k of the script's: k backward passes made the step, and whether each loss was
    divided by k is not known."""
    steps_are: Label = ""
    """The things that are counted as steps, in words; empty where they are optimizer steps, or none was seen yet."""
    total_by: Label | None = None
    """The library that says how many steps there are: `Trainer`, `Lightning`, `DeepSpeed`, `tqdm`. None: the script."""
    flops: Amount | None = None
    """Floating-point operations of the model in a step, counted once. None: not yet, or they cannot be."""
    peak: Amount | None = None
    """Such operations a second that the device can do. None: not known, as of a CPU."""
    threads: Threads | None = None
    """None: not read yet, which the training thread does at the end of a recorded step."""
    calls: Count = 0
    """Collectives of one group since the heartbeat that first had this `step`; 0 where it has ceased to make any."""
    calls_in: Label = ""
    """That group: the one with most of them."""
    hold: Holding | None = None
    """None: no action holds the rank, or is about to."""
    saved: Saved | None = None
    """The last checkpoint, where whoever has asked for it has not read what came of it."""


class Steps(Message, frozen=True, tag="steps"):
    """Step records of one rank, oldest first."""

    rank: Rank
    steps: tuple[Step, ...]
    generation: Count = 0
    """Restart count of the group when the rank's process began; each process numbers its records anew."""


class EncodedSteps(Message, frozen=True, tag="steps"):
    """A `Steps` message whose records stay encoded; other processes read it as `Steps`."""

    rank: Rank
    steps: tuple[msgspec.Raw, ...]
    generation: Count = 0


class Numbered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The numbers of a `Step`, without the rest of it."""

    seq: Count
    step: Count


class NumberedSteps(Message, frozen=True, tag="steps"):
    """A `Steps` message of which only the numbers are read: enough to store it, at a tenth of the cost."""

    rank: Rank
    steps: tuple[Numbered, ...]
    generation: Count = 0


class Summary(Message, frozen=True, tag="summary"):
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
    """Steps since the previous summary, those included that were only counted."""
    wall_ns: Span
    """Mean over these steps of the time of one; so are all times here."""
    data_ns: Span | None
    forward_ns: Span | None
    backward_ns: Span | None
    optimizer_ns: Span | None
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
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    """Newest value of each name that was given to `ddptop.agent.log`."""
    generation: Count = 0
    """Restart count of the group at these steps."""
    copy_ns: Span | None = None
    dominant: Count = 0
    """The kind of collective that has taken most time, by its place in `latencies.KINDS`; also 0 where there was
    none."""
    dominant_p50_ns: Span | None = None
    """Its median latency."""
    dominant_p99_ns: Span | None = None
    tokens: Amount | None = None
    """Mean number of tokens of a step, over the steps where it is known."""


class SampledLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line of the user's code in which looks from outside found the main thread of a rank."""

    phase: Name
    where: Line
    """`train.py:31 slow`."""
    share: Amount
    """Part of all looks of the stretch, from 0 to 1."""


MOST_SAMPLED: Final = 20
"""Lines of the user's code in one `Sampled` at most, those with the most looks."""


class Sampled(Message, frozen=True, tag="sampled"):
    """Where the main thread of a rank spent a stretch of time, by looks at its stack from outside.

    The observer makes it of a rank without an agent, one stretch of some seconds after the other. It is the time of the
    host: where kernels run on a device, a phase has the time in which the main thread launched them or waited for them.
    """

    rank: Rank
    at_ns: Moment
    """End of the stretch."""
    span_ns: Span
    looks: Count
    """Looks that found a stack. A share p of n looks has a standard error of sqrt(p * (1 - p) / n), as far as
    neighbouring looks do not depend on each other; see `sampling_error`."""
    shares: dict[Name, Amount]
    """By phase of `PHASES` but `copy`; they add up to 1. Empty: no look found a stack."""
    lines: Annotated[tuple[SampledLine, ...], msgspec.Meta(max_length=MOST_SAMPLED)] = ()
    """The most looks first."""
    still_since_ns: Moment | None = None
    """Since when every look has found the main thread on the same lines, where it either hardly ran on a CPU or did
    nothing but that, which `busy` shows. None: it moves."""
    still_at: Line = ""
    """That line of the user's code, and the call that it waits in: `train.py:40 main, in all_reduce`."""
    cost_percent: Amount = 0.0
    """CPU that the looks took; 100 is one core."""
    generation: Count = 0
    """Restart count of the group when the rank's process began."""
    blocks: Count = 0
    """Looks that count as independent of each other; see `sampling_error`."""
    log_step: Whole | None = None
    """The newest step that the log of the rank, or of its launcher, names. None: it names none."""
    log_total: Whole | None = None
    """The number of all steps, by the log."""
    log_loss: float | None = None
    """The newest loss in the log."""
    log_at_ns: Moment | None = None
    """When the line with that step or that loss was read."""
    problem: Line = ""
    """The reason for which there are no looks, and the help for it, one line."""
    busy: Amount | None = None
    """Part of the stretch in which the main thread ran on a CPU, or was kept from it by others. None: there are no
    looks."""
    starved: Amount | None = None
    """Part of the stretch in which the main thread was ready to run and had no CPU. None: the system does not say."""


def sampling_error(share: float, looks: int) -> float:
    """Return the standard error of the share of a phase, by the number of looks that are independent of each other.

    It is that of a binomial proportion. The estimate is that of Agresti and Coull (1998), by which a share of 0 or 1
    of few looks is not taken for certain.
    """
    n = looks + 4
    p = (share * looks + 2) / n
    return math.sqrt(p * (1 - p) / n)


class Event(Message, frozen=True, tag="event"):
    """A line of the run's event list."""

    at_ns: Moment
    text: Line
    rank: Rank | None = None
    level: Name = "info"
    """`info`, `warning` or `error`."""
    action: Name = ""
    """The action that somebody carried out: `pause`, `step`, `kill`. Empty where the event is not an action."""
    who: Label = ""
    """The author of the action: `ada (dashboard, pts/3)`."""


class Hang(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is known of a run that makes no steps."""

    kind: Name
    """The class of the hang: `exception`, `not_entered`, `mismatch`, `left_early`, `stopped`, `spinning`, `lock_held`,
    `data`, `waiting`, `swapping`, `gone`, `at_exit`, `all_inside` or `unknown`; of a run that only stands `working` or
    `all_outside`."""
    ranks: tuple[Rank, ...] = ()
    """The ranks that are the cause; empty where it is none or all of them."""
    where: Line = ""
    """`train.py:31 main`: the user's line on which the first of these ranks stands. Empty: not known."""
    waiting: Line = ""
    """What the other ranks stand in: `all_reduce 4.2 MB, group 0, 3 of 4 ranks, train.py:40`."""
    evidence: Line = ""
    """What the verdict rests on: `record of collectives, stacks`."""
    sure: bool = True
    """False where the evidence allows another explanation."""
    timeout_at_ns: Moment | None = None
    """When the first of the collectives that wait runs into its timeout. None: not known, or there is none."""
    timeout_of: Label = ""
    """`group 1`, or `new_group`: that whose timeout it is. Empty: the default group."""


_AGE: Final = re.compile(r" · [\d,.:]+ (?:s|min|h|d)$")
"""The end of the text of a verdict that has a hang."""


class Verdict(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One thing that is wrong with the run, from its beginning to its end, as the observer judges it."""

    number: Count
    """Consecutive number of the verdict in its run, from 1: the same as long as the same is told. 0: none yet."""
    kind: Name
    """One of `VERDICT_KINDS`."""
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
    hang: Hang | None = None
    """`hang` and `standing`: what is known of it."""
    host: Label = ""
    """The host of that rank, or the host that is to blame, where the run is on several."""
    line: Line = ""
    """The line of code that costs the time: `train.py:88 load_image`; of `memory_creep` the one that made the objects
    which came. Empty: not known, or none stands out."""
    line_ms: Amount | None = None
    """Milliseconds of each step that this line takes longer than on an ordinary rank."""
    line_share: Amount | None = None
    """Part of `cost_ms` that this is."""
    cause: Line = ""
    """`memory_creep`: what grew and what holds it, one line. Empty: not known."""
    said_at_ns: Moment | None = None
    """When it was first told, some time after its beginning. None: of an observer that does not say it."""
    urgent: bool = False
    """True for what ends the training, or makes it useless, if nobody acts."""

    @property
    def told_at_ns(self) -> int:
        """When it was first told, as far as that is known."""
        return self.since_at_ns if self.said_at_ns is None else self.said_at_ns

    @property
    def level(self) -> str:
        """The level of its line among the events."""
        kind = VERDICT_KINDS.get(self.kind)
        return "warning" if kind is None else kind.level

    @property
    def is_hang(self) -> bool:
        """True for a hang, False for everything else, such as a long evaluation for which the ranks stand."""
        return self.hang is not None and self.kind == "hang"

    @property
    def ageless(self) -> str:
        """Its text without the time for which it had gone on by then."""
        return self.text if self.hang is None else _AGE.sub("", self.text)

    def is_the_cause(self, cause: str | None) -> bool:
        """Say whether the cause of a run's end is this hang, whatever has ended what was left of the run then."""
        return cause is not None and (cause == self.ageless or cause.startswith(f"{self.ageless}; "))


class Recorded(Message, frozen=True, tag="recorded"):
    """What one observer of a run on several hosts has recorded, for the records of the others."""

    events: Annotated[tuple[Event, ...], msgspec.Meta(max_length=1024)] = ()
    verdicts: Annotated[tuple[Verdict, ...], msgspec.Meta(max_length=1024)] = ()
    """In place of what was recorded of their numbers before."""


Telemetry = Hello | Beat | Steps | Summary | Event | Checksums | Sampled
