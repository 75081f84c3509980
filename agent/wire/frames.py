"""What is known of a run at one moment: its frame, and one of each of its ranks, as its observer publishes them.

Whoever looks on gets frames and nothing else: nobody but the observer joins, counts or judges. `None` is "not known".
Text is clean once it is read here: no control characters, no escape sequences. It is not markup.
"""

# Without `annotations` from `__future__`, each of which msgspec would compile: every command and rank waits for that.
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from ddptop.agent.wire.hosts import MOST_HOSTS, HostFrame
from ddptop.agent.wire.incoming import Label, Line, Name, Verbatim
from ddptop.agent.wire.latencies import ALL_REDUCE
from ddptop.agent.wire.message import MOST_RANKS, Count, Message, Pid, Rank, Whole
from ddptop.agent.wire.telemetry import Verdict

TOPIC_RUN: Final = b"run"
"""`RunFrame`, four times a second while anybody subscribes, and at every change of state."""
TOPIC_OUTLINE: Final = b"outline"
"""`RunFrame` without its events, once a second: for the observers of other hosts, where nobody may be looking on."""
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


class RankFrame(Message, frozen=True, tag="rank_frame"):
    """One rank at one moment."""

    rank: Rank
    state: Name
    activity: Line
    """The work of the main thread: a start phase ("imports") or a step phase ("backward")."""
    pid: Pid | None = None
    host: Label | None = None
    step: Count | None = None
    step_age_s: float | None = None
    """Since the last step was completed."""
    heard_age_s: float | None = None
    """Since the last sign of life of the agent."""
    loss: float | None = None
    is_loss_unsure: bool = False
    """True where gradients are accumulated and how the script divides its losses is not known: shown as `~`."""
    losses: _Losses = ()
    """Recent losses, oldest first, at most 240."""
    step_ms: float | None = None
    """Mean over the recent window (about 2 s, at least one step)."""
    phases_ms: dict[Name, float] | None = None
    """The same window, by phase of `wire.PHASES`; adds up to `step_ms`. A phase not observed is left out."""
    allreduce_p50_ms: float | None = None
    allreduce_p99_ms: float | None = None
    dominant: Name | None = None
    """The kind of collective that the run uses most. None: `all_reduce`."""
    dominant_p50_ms: float | None = None
    dominant_p99_ms: float | None = None
    samples_per_s: float | None = None
    memory_bytes: Count | None = None
    memory_total_bytes: Count | None = None
    memory_kind: Name = "process"
    """`device` on an accelerator, `process` for resident memory."""
    cpu_percent: float | None = None
    device_percent: float | None = None
    device: Label | None = None
    mechanism: Label | None = None
    """The way in which collectives are seen, None where they are not."""
    outstanding: Count = 0
    log: Verbatim | None = None
    """Path of the rank's log, or None where output goes to a terminal."""
    metrics: dict[Name, float] = msgspec.field(default_factory=dict)
    missed: Count = 0
    """Step records lost on the way and not to be had any more."""
    dropped: Count = 0
    refused: Count = 0
    fault: Line | None = None
    """The agent's last own error; the training goes on."""
    health: Line | None = None
    """An error in its numbers, one line: `loss is nan since step 123`."""
    device_ms: dict[Name, float] | None = None
    """The phases of the recent window on the device's own time line, without `wait`. None: not on CUDA."""
    ended: Line | None = None
    """Its end, one line, for example `exit code 1: ValueError: bad lr`."""
    torch_version: Label | None = None
    python_version: Label | None = None
    allreduce_wait_ms: float | None = None
    """Mean per step, over recent steps: time in all-reduces until the last rank had entered."""
    allreduce_transfer_ms: float | None = None
    """The same, from then until they were done."""
    timed_every: Count = 1
    """One step of so many has its collectives timed."""
    faults: Count = 0
    """Errors inside the agent so far."""
    coordinates: dict[Name, int] | None = None
    """Its position on a device mesh or in a pipeline, as its script says."""
    stands: bool = False
    """True where it should complete steps and has not for long: `step_ms` is then of before."""
    communicated: bool | None = None
    """True once it has called a collective; None where it may have done so unseen."""
    far: bool = False
    """True where it runs on another host than this one: `log` is a copy then, if there is one."""
    unkept: bool = False
    """True where what it prints goes to the terminal that started it, and into no file."""
    tokens_per_s: float | None = None
    flops: float | None = None
    """Floating-point operations of a step, counted once."""
    flops_per_s: float | None = None
    mfu: float | None = None
    """Part of the operations that its device can do in the same time, from 0 to 1. None: its peak is not known."""

    @property
    def current_step_ms(self) -> float | None:
        """Milliseconds of a step now; None where the rank stands."""
        return None if self.stands else self.step_ms

    @property
    def collective(self) -> tuple[str, float | None, float | None]:
        """The kind of collective that the run uses most, with its median and p99 in ms."""
        if self.dominant is None:
            return ALL_REDUCE, self.allreduce_p50_ms, self.allreduce_p99_ms
        return self.dominant, self.dominant_p50_ms, self.dominant_p99_ms


class RunFrame(Message, frozen=True, tag="run_frame"):
    """One run at one moment, without its ranks."""

    run: Name
    state: Name
    program: Line
    world: Count
    at: float
    """Seconds since the epoch."""
    backend: Label | None = None
    device: Label | None = None
    placement: Line = ""
    """One line on why this device and backend were chosen."""
    injected: Line | None = None
    """Faults put into this run on purpose with `--inject`, one line; None for an honest run."""
    note: Line | None = None
    """A remark of the program on itself, for example that its data is synthetic."""
    recorded_every: Count = 1
    """One step in so many is recorded whole, and of the others their time alone; see `recording`."""
    steps_are: Label = ""
    """The things that are counted as steps, such as `backward passes`; empty where they are optimizer steps."""
    started_at: float | None = None
    ended_at: float | None = None
    held_since: float | None = None
    """When the last rank came to hold, for a paused run, and the first, for a held one; when its processes were
    stopped, for a frozen one."""
    step: Count | None = None
    """The step that every rank has completed."""
    total_steps: Count | None = None
    total_by: Label | None = None
    """The library that says so; None: the script itself."""
    eta_s: float | None = None
    step_ms: float | None = None
    """Mean step time of the slowest rank in the recent window: the common scale of the bars."""
    phases_ms: dict[Name, float] | None = None
    """Mean over ranks."""
    samples_per_s: float | None = None
    """Of the whole group; a sample on which several ranks work together counts once."""
    loss: float | None = None
    """Mean over the ranks' last losses."""
    is_loss_unsure: bool = False
    """True where it is of any rank."""
    collective: Name = ALL_REDUCE
    """The kind of collective that has taken most time in most ranks."""
    slowest: Rank | None = None
    """Rank with the largest own time (step without wait), where it stands out at all."""
    torchrun_pid: Pid | None = None
    supervised: bool = True
    """False when no observer looks after the run."""
    orphaned: bool = False
    """True when torchrun is gone and ranks live on."""
    launched: bool = True
    exit_code: Whole | None = None
    cause: Line | None = None
    cause_rank: Rank | None = None
    one_host: Label | None = None
    """The host of all ranks; None where they are on several, or none is known."""
    one_device: Label | None = None
    """The device of all ranks, likewise."""
    events: _Events = ()
    """Newest last, at most `MOST_EVENTS`."""
    verdicts: tuple[Verdict, ...] = ()
    """All that is wrong now, the one that matters most first."""
    missing_steps: Count = 0
    """About how many more steps it takes until a rank can be told to be slow; 0 where it can."""
    refused: Count = 0
    """Messages that agents, observer or this onlooker could not read, or that cannot be true."""
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
    ends_at: float | None = None
    """When the scheduler takes the machine back, in seconds since the epoch; None where nobody does, or it is not
    known."""
    awaits: Line = ""
    """While no rank of a host lives: what their start waits for."""
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
    unlinked: tuple[Rank, ...] = ()
    """Ranks on other hosts of which nobody tells, because no link to those hosts could be made."""
    unlinked_why: Line = ""
    """Why, one line; empty where that is not known."""
    on_hosts: Annotated[tuple[HostFrame, ...], msgspec.Meta(max_length=MOST_HOSTS)] = ()
    """The hosts of a run on several, in the order of their ranks; none of a run on one."""
    tokens_per_s: float | None = None
    """Like `samples_per_s`."""
    flops_per_s: float | None = None
    """Floating-point operations a second of all ranks together whose work is known."""
    mfu: float | None = None
    """Part of the operations that the devices of the ranks could do, of those ranks for which both are known."""
    named_from_ms: float | None = None
    """Milliseconds a step from which a delay of any one rank would be told within seconds; None where none would be."""
    goes_on: Line = ""
    """Of a run that stands and makes collectives all the same: `makes no optimizer step since step 8, and goes on: 848
    calls in group 0`."""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict that is shown where there is room for one."""
        return self.verdicts[0] if self.verdicts else None


class Rows(Message, frozen=True, tag="rows"):
    """The frames of some ranks of a large group, without their losses; each rank is in one of them once a second.

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
