"""What is known of a run at one moment: its frame, and one of each of its ranks, as its observer publishes them.

Whoever looks on gets frames and nothing else: nobody but the observer joins, counts or judges. `None` is "not known".
Text is clean once it is read here: no control characters, no escape sequences. It is not markup.
"""

# Without `annotations` from `__future__`, each of which msgspec would compile: every command and rank waits for that.
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from ddptop.agent.wire.hosts import MOST_HOSTS, HostFrame
from ddptop.agent.wire.incoming import Label, Line, Name, Verbatim
from ddptop.agent.wire.message import MOST_RANKS, Amount, Count, Message, Pid, Rank, Whole
from ddptop.agent.wire.steps.latencies import ALL_REDUCE
from ddptop.agent.wire.telemetry import Verdict

TOPIC_RUN: Final = b"run"
"""`RunFrame`, four times a second while anybody subscribes, and at every change of state."""
TOPIC_OUTLINE: Final = b"outline"
"""`RunFrame` without its events, at each change of the hosts, of the verdicts and of the state, and every ten seconds:
for the observers of other hosts, where nobody may be looking on."""
TOPIC_RANK: Final = b"rank"
"""`RankFrame` of one rank (`topic_of`), four times a second while anybody subscribes to it."""
TOPIC_RANKS: Final = b"ranks"
"""`Rows`, once a second while anybody subscribes."""

STATES: Final = (
    "starting", "running", "pausing", "paused", "frozen", "stalled", "silent", "killing", "ending",
    "finished", "ended", "stopped", "failed", "killed", "lost", "held",
)  # fmt: skip
"""The states of a run or a rank that this version knows; a newer agent may send others. `held`: for some work of ours,
as a probe; `frozen`: its processes are stopped by SIGSTOP or a debugger; `stalled`: alive without progress; `silent`:
no sign of life; `ending`: all ranks have ended, and their launcher has not; `ended`: by itself, with an unknown exit
code; `lost`: gone without a record of its end."""
ENDED: Final = frozenset({"finished", "ended", "stopped", "failed", "killed", "lost"})
"""Those of them in which a run or a rank is over."""
LONGEST: Final = 12
"""Letters of an unknown state at most."""
MOST_EVENTS: Final = 500
"""Events of a `RunFrame` at most, the newest."""

UNREPORTED: Final = "not reported yet"
"""The name that stands for the host of a rank on another host, nobody knows which, that has not come."""


class EventLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One line of the run's event list."""

    at: float
    """Seconds since the epoch."""
    text: Line
    rank: Rank | None
    level: Name
    """`info`, `warning` or `error`."""
    verdict: Count | None = None
    """Number of the verdict that begins with it, whose figures may change."""


_Events = Annotated[tuple[EventLine, ...], msgspec.Meta(max_length=1024)]
_Losses = Annotated[tuple[float | None, ...], msgspec.Meta(max_length=1024)]


class Restart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All ranks were restarted."""

    generation: Count
    """The number of this start, the first being 0."""
    at: float
    """Seconds since the epoch."""
    step: Count
    """The last step on the curve before it; the steps of the new generation follow."""


class AllReduce(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The all-reduces of a rank, in ms."""

    p50: float | None = None
    p99: float | None = None
    wait: float | None = None
    """Mean per step, over recent steps: time until the last rank had entered."""
    transfer: float | None = None
    """The same, from then until they were done."""


class Calls(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The calls of one kind of collective in a rank, in ms."""

    op: Name = ALL_REDUCE
    p50: float | None = None
    p99: float | None = None


class ByLooks(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The time of a rank by phase, by looks at its stack from outside over the last half a minute; of a run, the mean
    of its ranks.
    """

    shares: dict[Name, Amount]
    """By phase, the part of its time, from 0 to 1."""
    errors: dict[Name, Amount]
    """By phase, the standard error of that."""
    looks: Count = 0
    """Looks that these are of."""
    line: Line = ""
    """The line of the script in which its main thread was found most often: `train.py:31 load`."""
    line_phase: Name = ""
    """The phase that this line is in."""
    line_share: Amount | None = None
    """The part of all looks that found it there."""
    still_s: Amount | None = None
    """Seconds for which its main thread has been on the same lines, and at no work; None: it moves."""
    still_at: Line = ""
    """Those lines, and the call that it waits in: `train.py:40 main, in all_reduce`."""
    cost_percent: Amount = 0.0
    """CPU that the looks take; 100 is one core."""
    problem: Line = ""
    """The reason for which there are no looks, and the help for it."""

    @property
    def error(self) -> float:
        """The largest standard error of a phase."""
        return max(self.errors.values(), default=0.0)


OUTSIDE: Final = "outside"
"""How a rank is known that nobody prepared, and none of whose numbers are its own; see `RankFrame.known_by`."""


class RankDetail(Message, frozen=True, kw_only=True):
    """The part of a rank's frame that only screens need."""

    heard_age_s: float | None = None
    """Since the last sign of life of the agent."""
    losses: _Losses = ()
    """Recent losses, oldest first, at most 240."""
    memory_total_bytes: Count | None = None
    memory_kind: Name = "process"
    """`device` on an accelerator, `process` for resident memory."""
    cpu_percent: float | None = None
    device_percent: float | None = None
    device: Label | None = None
    mechanism: Label | None = None
    """The way in which collectives are seen, None where they are not."""
    outstanding: Count = 0
    missed: Count = 0
    """Step records lost on the way and not to be had any more."""
    dropped: Count = 0
    refused: Count = 0
    device_ms: dict[Name, float] | None = None
    """The phases of the recent window on the device's own time line, without `wait`. None: not on CUDA."""
    torch_version: Label | None = None
    python_version: Label | None = None
    timed_every: Count = 1
    """One step of so many has its collectives timed."""
    faults: Count = 0
    """Errors inside the agent so far."""
    stands: bool = False
    """True where it should complete steps and has not for long: `step_ms` is then of before."""
    communicated: bool | None = None
    """True once it has called a collective; None where it may have done so unseen."""
    far: bool = False
    """True where it runs on another host than this one: `log` is a copy then, if there is one."""
    unkept: bool = False
    """True where what it prints goes to the terminal that started it, and into no file."""


class RankFrame(RankDetail, frozen=True, kw_only=True, tag="rank_frame"):
    """One rank at one moment.

    The fields of this class are those of a rank in `--json`, in their order, and their docstrings are its manual.
    """

    rank: Rank
    """Its number."""
    host: Label | None = None
    """Its host."""
    pid: Pid | None = None
    """Its process there."""
    state: Name
    """`running`, `paused` and others: see json.md#states."""
    activity: Line
    """The work of the main thread: a phase of the start (`imports`) or of a step (`backward`)."""
    step: Count | None = None
    """The last step."""
    loss: float | None = None
    """The last loss."""
    is_loss_unsure: bool = False
    """True where that loss may be a part of the script's, shown as `~`: see numbers.md#loss."""
    step_ms: float | None = None
    """Time of a step, the mean of the last seconds; while the rank stands, that of its last steps."""
    phases_ms: dict[Name, float] | None = None
    """The same time by phase: `data`, `copy` (to a device, where there is one), `forward`, `backward`, `optimizer`,
    `wait`, `other`; None: never seen, as a forward pass without DDP, FSDP2 or a loader."""
    allreduce_ms: AllReduce = AllReduce()
    """An object with `p50` and `p99` of a call, and of a step `wait` until the last rank came, and `transfer` after."""
    collective_ms: Calls = Calls()
    """The collective that takes most time in the run: its `op` (`all_reduce`, `all_gather`, `reduce_scatter` or
    `all_to_all`), `p50` and `p99` of a call."""
    samples_per_s: float | None = None
    """Samples a second; None while the rank stands."""
    tokens_per_s: float | None = None
    """Tokens likewise; None where batches are not known to be text."""
    flops: float | None = None
    """Floating-point operations of a step, counted once."""
    flops_per_s: float | None = None
    """The same a second; None while the rank stands."""
    mfu: float | None = None
    """The part of the peak of its device that this is, from 0 to 1; None where no peak is known."""
    memory_bytes: Count | None = None
    """Memory of the device, or of the process."""
    step_age_s: float | None = None
    """Seconds since the last step, or since the last pause; None while the rank is paused."""
    health: Line | None = None
    """An error in its numbers: `loss is nan since step 123`."""
    fault: Line | None = None
    """The last fault of the agent inside the rank; the training goes on."""
    metrics: dict[Name, float] = msgspec.field(default_factory=dict)
    """The values that the script gave to `agent.log`."""
    coordinates: dict[Name, int] | None = None
    """Its place on a device mesh or in a pipeline, as its script says."""
    log: Verbatim | None = None
    """Path of its log; None where that is on another host, or output goes to a terminal."""
    ended: Line | None = None
    """Its end, one line: `exit code 1: ValueError: bad lr`."""
    known_by: Name = "agent"
    """The source of its numbers: `agent`, in its process since the start; `joined`, which came while it ran; `outside`:
    looks at its process and its log, so that most are null."""
    by_looks: ByLooks | None = None
    """Its time by phase, where it is seen from outside: an object with `shares` (from 0 to 1), their standard `errors`,
    the number of `looks`, the `line` in which it is most often, with `line_phase` and `line_share`, `still_s` and
    `still_at` where it does not move, `cost_percent` of a core for the looks, and `problem` where there are none."""
    from_log: bool = False
    """True where `step` and `loss` are what its log names as such."""

    @property
    def current_step_ms(self) -> float | None:
        """Milliseconds of a step now; None where the rank stands."""
        return None if self.stands else self.step_ms


class RunDetail(Message, frozen=True, kw_only=True):
    """The part of a run's frame that only screens need."""

    placement: Line = ""
    """One line on why this device and backend were chosen."""
    started_at: float | None = None
    ended_at: float | None = None
    held_since: float | None = None
    """When the last rank came to hold, for a paused run, and the first, for a held one; when its processes were
    stopped, for a frozen one."""
    eta_s: float | None = None
    step_ms: float | None = None
    """Mean step time of the slowest rank in the recent window: the common scale of the bars."""
    phases_ms: dict[Name, float] | None = None
    """Mean over ranks."""
    loss: float | None = None
    """Mean over the ranks' last losses."""
    is_loss_unsure: bool = False
    """True where it is of any rank."""
    collective: Name = ALL_REDUCE
    """The kind of collective that has taken most time in most ranks."""
    slowest: Rank | None = None
    """Rank with the largest own time (step without wait), where it stands out at all."""
    launched: bool = True
    cause_rank: Rank | None = None
    one_host: Label | None = None
    """The host of all ranks; None where they are on several, or none is known."""
    one_device: Label | None = None
    """The device of all ranks, likewise."""
    events: _Events = ()
    """Newest last, at most `MOST_EVENTS`."""
    logged: tuple[Name, ...] = ()
    """Names of the values that the scripts gave to `ddptop.agent.log`, in order."""
    outstanding: Count = 0
    """Collectives that live ranks have entered and not finished, all ranks together."""
    checkpoints: bool = False
    """True where its script has told how to save a checkpoint."""
    timeout_s: float | None = None
    """Timeout of collectives in the default process group, the shortest of all ranks; None where it is not known."""
    ending: Line = ""
    """While something is being ended: the processes that are left, and when the escalation goes on."""
    action: Line = ""
    """The action on all ranks that is under way, and its author; such as `pause by ada (dashboard, pts/3)`."""
    waiting: Line = ""
    """The ranks that this action waits for."""
    restarts: tuple[Restart, ...] = ()
    """Oldest first."""
    max_restarts: Count = 0
    """The number of times that torchrun may start the group anew."""
    run_id: Label = ""
    """An identity that no other run has, also one that takes its name; empty where no run is shown."""
    grace_s: float = 5.0
    """Seconds between SIGTERM and SIGKILL of a kill, where nobody asks for others."""
    generation: Count = 0
    """The number of times that it was restarted."""
    placed: bool = False
    """True where ranks have coordinates."""
    stands: bool = False
    """True where it should complete steps and none of its ranks has for long; see `RankFrame.stands`."""
    unlinked_why: Line = ""
    """Why no link to the hosts of `unlinked` could be made, one line; empty where that is not known."""
    on_hosts: Annotated[tuple[HostFrame, ...], msgspec.Meta(max_length=MOST_HOSTS)] = ()
    """The hosts of a run on several, in the order of their ranks; none of a run on one."""


class RunFrame(RunDetail, frozen=True, kw_only=True, tag="run_frame"):
    """One run at one moment, without its ranks.

    The fields of this class are those of a run in `--json`, in their order, and their docstrings are its manual.
    """

    run: Name
    """Its name."""
    at: float
    """Seconds since the epoch at which this was so."""
    state: Name
    """`running`, `paused` and others: see json.md#states."""
    program: Line
    """Its script, or the program of the catalogue."""
    world: Count
    """The number of its ranks."""
    backend: Label | None = None
    """`gloo`, `nccl`."""
    device: Label | None = None
    """The device of its ranks."""
    step: Count | None = None
    """The step that every rank has completed."""
    total_steps: Count | None = None
    """Steps of the whole training."""
    steps_are: Label = ""
    """The things that are counted as steps, where they are not optimizer steps: `backward passes`, `batches`, or calls
    of `ddptop.agent.step()`; None: optimizer steps, or none yet."""
    total_by: Label | None = None
    """The library that says how many steps there are: `Trainer`, `Lightning`, `DeepSpeed` or `tqdm`; None: the
    script."""
    samples_per_s: float | None = None
    """Samples a second of the whole group, each counted once, also where several ranks work together on it; None while
    the run stands."""
    tokens_per_s: float | None = None
    """Tokens likewise; None where batches are not known to be text: see numbers.md#samples-and-tokens-a-second."""
    flops_per_s: float | None = None
    """Floating-point operations a second of the models of all ranks; None until they are counted, and while the run
    stands."""
    mfu: float | None = None
    """The part of the devices' peak that this is, from 0 to 1; None where no peak is known: see
    numbers.md#the-work-of-the-model-and-mfu."""
    goes_on: Line = ""
    """Of a run that stands and makes collectives all the same: `makes no optimizer step since step 8, and goes on: 848
    calls in group 0`."""
    pid: Pid | None = None
    """torchrun's."""
    supervised: bool = True
    """True while an observer lives."""
    orphaned: bool = False
    """True when torchrun is gone and ranks live on."""
    exit_code: Whole | None = None
    """That of torchrun, or of the job."""
    cause: Line | None = None
    """The first cause of a failure, there as soon as a rank has failed, and more exact at the end."""
    note: Line | None = None
    """A remark of the program on itself, for example that its data is synthetic."""
    recorded_every: Count = 1
    """One step in so many is recorded whole, and of the others their time alone: see numbers.md#what-is-recorded."""
    injected: Line | None = None
    """Faults put into this run on purpose with `--inject`, one line; None for an honest run."""
    ends_at: float | None = None
    """When the scheduler takes the machine back, seconds since the epoch; None: nobody does, or not known."""
    awaits: Line = ""
    """While no rank of a host lives: what their start waits for, such as the other hosts."""
    refused: Count = 0
    """Messages that agents, observer or this onlooker could not read, or that cannot be true."""
    unlinked: tuple[Rank, ...] = ()
    """Ranks on other hosts of which nothing is heard, because those hosts are not linked."""
    missing_steps: Count = 0
    """About how many more steps it takes until a slow rank can be named; 0 where one can."""
    named_from_ms: float | None = None
    """Milliseconds a step from which a delay of any one rank would be named within seconds; None where no rank can be
    named, or one is: see verdicts.md."""
    verdicts: tuple[Verdict, ...] = ()
    """All that is wrong now, the one that matters most first."""
    known_by: Name = "agent"
    """The source of its numbers, as of a rank; `outside` as long as that is so of any rank."""
    by_looks: ByLooks | None = None
    """As of a rank, the mean of all; without lines."""
    from_log: bool = False
    """True where `step` and `loss` are what logs name as such."""
    named_from_share: float | None = None
    """The part of its time, from 0 to 1, by which one rank would have to wait less than the others to be named by looks
    from outside; None where no rank can be named so, or one is."""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that is shown where there is room for one; None where nothing is wrong."""
        return self.verdicts[0] if self.verdicts else None


class Rows(Message, frozen=True, tag="rows"):
    """The frames of some ranks, without their losses, of a large group or for the head; each is in one once a second.

    To a new subscriber those of all ranks, in several messages where one would be longer than `MAX_MESSAGE_BYTES`.
    """

    at: float
    """Seconds since the epoch."""
    ranks: Annotated[tuple[RankFrame, ...], msgspec.Meta(max_length=MOST_RANKS)]


class EncodedRows(Message, frozen=True, tag="rows"):
    """A `Rows` message whose frames stay encoded; other processes read it as `Rows`."""

    at: float
    ranks: tuple[msgspec.Raw, ...]


def awaited(outstanding: Mapping[int, int]) -> list[int]:
    """Return which of the ranks that are not held are to be named: those that do not just wait for others.

    A rank in a collective waits for ranks that have not entered it.

    Args:
        outstanding: by rank that is not held, its collectives in progress.
    """
    return sorted(rank for rank, calls in outstanding.items() if not calls) or sorted(outstanding)


class Clock(NamedTuple):
    """The clock of one host, compared with that of the head."""

    host: int
    """Number of the host among those shown."""
    offset_ns: int
    """That clock less the head's."""
    error_ns: int
    """The true offset is at most so far from that."""


class HostFrames(tuple[HostFrame, ...]):
    """The hosts of a run, in the order of their ranks; none of a run on one host."""

    by_rank: Mapping[int, int]
    """The number of the host of each rank that is known to be on one."""

    def __new__(cls, hosts: Iterable[HostFrame] = (), by_rank: Mapping[int, int] | None = None) -> "HostFrames":
        """Hold these hosts; `by_rank` is given where the caller has it."""
        made = super().__new__(cls, hosts)
        if by_rank is None:
            by_rank = {rank: number for number, host in enumerate(made) for rank in host.ranks}
        made.by_rank = by_rank
        return made

    @property
    def several(self) -> bool:
        """True where ranks of more than one host are known: only then there is something to group."""
        return len(self) > 1

    def of(self, rank: int | None) -> HostFrame | None:
        """Return the host of a rank; None where it is not known, or the run has one host."""
        number = None if rank is None else self.by_rank.get(rank)
        return None if number is None else self[number]

    def name_of(self, rank: int | None) -> str:
        """Return the name of a rank's host where there are several; else nothing."""
        host = self.of(rank) if self.several else None
        return "" if host is None else host.host

    def clock(self, rank: int) -> Clock | None:
        """Return the clock of a rank's host; None where it is not known by how much it is off."""
        number = self.by_rank.get(rank)
        if number is None:
            return None
        host = self[number]
        if host.offset_ms is None or host.offset_error_ms is None:
            return None
        return Clock(number, round(host.offset_ms * 1e6), round(host.offset_error_ms * 1e6))

    def with_times(self, times: Mapping[int, Sequence[float | None]], wait: int) -> "HostFrames":
        """Return the same with the times of their slowest ranks.

        Args:
            times: by rank, in ms: a step, and its phases.
            wait: where in these the waiting for others stands.
        """
        return HostFrames([_timed(host, times, wait) for host in self], self.by_rank)


NO_HOSTS: Final = HostFrames()


def _timed(host: HostFrame, times: Mapping[int, Sequence[float | None]], wait: int) -> HostFrame:
    known = [times[rank] for rank in host.ranks if rank in times]
    steps = [each[0] for each in known if each[0] is not None]
    own = [step - waited for each in known if (step := each[0]) is not None and (waited := each[wait]) is not None]
    return replace(host, step_ms=max(steps, default=None), own_ms=max(own, default=None))
