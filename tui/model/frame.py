"""What one painting of the screen needs: an immutable frame of a run, made by `framer`.

What widgets show of a run is in its `Frame`.  `None` is "not known" and is drawn as a dim dash.
All text in here has been cleaned: no control characters, no escape sequences.  It is still
not markup: draw it with `rich.text.Text` or `Segment`, never as a markup string.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

from ddptop.agent.run.states import ENDED as ENDED
from ddptop.agent.run.states import STATES as STATES
from ddptop.agent.text import plural
from ddptop.agent.wire.latencies import ALL_REDUCE
from ddptop.tui.drawing.units import duration
from ddptop.tui.model.hosts import NO_HOSTS, HostFrames

if TYPE_CHECKING:
    from ddptop.agent.wire import Verdict
    from ddptop.tui.model.history.history import History


@dataclass(frozen=True, slots=True)
class EventLine:
    """One line of the run's event list."""

    at: float
    """Seconds since the epoch."""
    text: str
    rank: int | None
    level: str
    """`info`, `warning` or `error`."""


def with_rank(text: str, rank: int | None, host: str = "") -> str:
    """Return what happened, with its rank in front where the text does not begin with it, and the rank's `host`."""
    named = rank is None or text.startswith((f"rank {rank} ", f"rank {rank}'s ", "ranks "))
    if not host or rank is None:
        return text if named else f"rank {rank}: {text}"
    if not named:
        return f"rank {rank} ({host}): {text}"
    begin = f"rank {rank} "
    told = host in text or not text.startswith(begin)
    return text if told else f"{begin}({host}) {text.removeprefix(begin)}"


def has_report(frame: Frame) -> bool:
    """Say whether there is an end to explain: the run has failed or was lost, or one of its ranks has failed."""
    return frame.state in ("failed", "lost") or (frame.cause is not None and frame.state not in ENDED)


def can_be_reported(frame: Frame) -> bool:
    """Say whether the report has something to tell: an end that is to be explained, or what a kill has ended."""
    return has_report(frame) or frame.state == "killed"


@dataclass(frozen=True, slots=True)
class RankFrame:
    """One rank at one moment."""

    rank: int
    state: str
    activity: str
    """What the main thread does: a start phase ("imports") or a step phase ("backward")."""
    pid: int | None = None
    host: str | None = None
    step: int | None = None
    step_age_s: float | None = None
    """Since the last step was completed."""
    heard_age_s: float | None = None
    """Since the last sign of life of the agent."""
    loss: float | None = None
    is_loss_unsure: bool = False
    """True where gradients are accumulated and how the script divides its losses is not known: shown as `~`."""
    losses: tuple[float | None, ...] = ()
    """Recent losses, oldest first, at most 240."""
    step_ms: float | None = None
    """Mean over the recent window (about 2 s, at least one step)."""
    phases_ms: Mapping[str, float] | None = None
    """The same window, by phase of `wire.PHASES`; adds up to `step_ms`. A phase not observed is left out."""
    allreduce_p50_ms: float | None = None
    allreduce_p99_ms: float | None = None
    dominant: tuple[str, float | None, float | None] | None = None
    """The kind of collective that the run uses most, with its median and p99 in ms; None: it is `all_reduce`."""
    samples_per_s: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_kind: str = "process"
    """`device` on an accelerator, `process` for resident memory."""
    cpu_percent: float | None = None
    device_percent: float | None = None
    device: str | None = None
    mechanism: str | None = None
    """How collectives are seen, None where they are not."""
    outstanding: int = 0
    log: str | None = None
    """Path of the rank's log, or None where output goes to a terminal."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    missed: int = 0
    """Step records lost on the way and not to be had any more."""
    dropped: int = 0
    refused: int = 0
    fault: str | None = None
    """The agent's last own error; the training goes on."""
    health: str | None = None
    """What is wrong with its numbers, one line: `loss is nan since step 123`."""
    device_ms: Mapping[str, float] | None = None
    """The phases of the recent window on the device's own time line, without `wait`. None: not on CUDA."""
    ended: str | None = None
    """How it ended, one line, for example `exit code 1: ValueError: bad lr`."""
    torch_version: str | None = None
    python_version: str | None = None
    exchange: Callable[[], tuple[float, float] | None] = field(default=lambda: None, repr=False, compare=False)
    """Works out `allreduce_wait_ms` and `allreduce_transfer_ms`, which few views show and which takes long."""
    timed_every: int = 1
    """One step of so many has its collectives timed."""
    faults: int = 0
    """Errors inside the agent so far."""
    coordinates: Mapping[str, int] | None = None
    """Where it stands on a device mesh or in a pipeline, as its script says."""
    stands: bool = False
    """True where it should complete steps and has not for long: `step_ms` is then of before; see `states.stands`."""
    communicated: bool | None = None
    """Whether it has called a collective so far; None where it may have done so unseen."""
    far: bool = False
    """True where it runs on another host than this one: `log` is a copy then, if there is one."""
    unkept: bool = False
    """True where what it prints goes to the terminal that started it, and into no file."""

    @property
    def current_step_ms(self) -> float | None:
        """What a step takes now; None where the rank stands."""
        return None if self.stands else self.step_ms

    @property
    def collective(self) -> tuple[str, float | None, float | None]:
        """The kind of collective that the run uses most, with its median and p99 in ms."""
        return self.dominant or (ALL_REDUCE, self.allreduce_p50_ms, self.allreduce_p99_ms)

    @property
    def allreduce_wait_ms(self) -> float | None:
        """Mean per step, over recent steps: time in all-reduces until the last rank had entered."""
        means = self.exchange()
        return None if means is None else means[0]

    @property
    def allreduce_transfer_ms(self) -> float | None:
        """The same, from then until they were done."""
        means = self.exchange()
        return None if means is None else means[1]

    def settled(self) -> RankFrame:
        """Return the same with all worked out: what is asked later would be of that moment."""
        means = self.exchange()
        return replace(self, exchange=lambda: means)


class Ranks(Sequence[RankFrame]):
    """Many ranks of which few are looked at: each is drawn up when it is first asked for.

    What nobody asked for before the next frame is made is never drawn up, and is then no longer
    that of the frame's moment; `tuple` takes hold of all.
    """

    def __init__(
        self, count: int, draw: Callable[[int], RankFrame], tell: Callable[[str], Sequence[Any] | None]
    ) -> None:
        self._drawn: list[RankFrame | None] = [None] * count
        self._draw = draw
        self._tell = tell
        """Returns a field of all ranks without drawing them up, None for one that takes as much."""

    def __len__(self) -> int:
        return len(self._drawn)

    @overload
    def __getitem__(self, index: int) -> RankFrame: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RankFrame, ...]: ...
    def __getitem__(self, index: int | slice) -> RankFrame | tuple[RankFrame, ...]:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(*index.indices(len(self))))
        found = self._drawn[index]
        if found is None:
            found = self._drawn[index] = self._draw(range(len(self))[index])
        return found

    def values(self, field: str) -> Sequence[Any]:
        """Return a field of every rank."""
        told = self._tell(field)
        return [getattr(rank, field) for rank in self] if told is None else told


@dataclass(frozen=True, slots=True)
class Restart:
    """All ranks were restarted."""

    generation: int
    """Which start this was, the first being 0."""
    at: float
    """Seconds since the epoch."""
    step: int
    """The last step on the `curve` before it; the steps of the new generation follow."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One run at one moment. Ranks are in order; a rank not heard of yet is there as `starting`."""

    run: str
    state: str
    program: str
    world: int
    at: float
    """Seconds since the epoch."""
    backend: str | None = None
    device: str | None = None
    placement: str = ""
    """One line on why this device and backend were chosen."""
    injected: str | None = None
    """Faults put into this run on purpose with `--inject`, one line; None for an honest run."""
    note: str | None = None
    """What the program says of itself, for example that its data is synthetic."""
    recorded_every: int = 1
    """One step in so many is recorded whole, and of the others their time alone; see `recording`."""
    steps_are: str = ""
    """The things that are counted as steps, such as `backward passes`; empty where they are optimizer steps."""
    started_at: float | None = None
    ended_at: float | None = None
    held_since: float | None = None
    """When the last rank came to hold, for a paused run; when its processes were stopped, for a frozen one."""
    step: int | None = None
    """The step that every rank has completed."""
    total_steps: int | None = None
    total_by: str | None = None
    """The library that says so; None: the script itself."""
    eta_s: float | None = None
    step_ms: float | None = None
    """Mean step time of the slowest rank in the recent window: the common scale of the bars."""
    phases_ms: Mapping[str, float] | None = None
    """Mean over ranks."""
    samples_per_s: float | None = None
    """Of the whole group; a sample on which several ranks work together counts once."""
    loss: float | None = None
    """Mean over the ranks' last losses."""
    is_loss_unsure: bool = False
    """True where it is of any rank."""
    collective: str = ALL_REDUCE
    """The kind of collective that has taken most time in most ranks."""
    slowest: int | None = None
    """Rank with the largest own time (step without wait), where it stands out at all."""
    torchrun_pid: int | None = None
    supervised: bool = True
    """False when no observer looks after the run."""
    unobserved_s: float | None = None
    """Seconds since the observer was heard last, where it is silent: the ranks are shown as they were then."""
    orphaned: bool = False
    """True when torchrun is gone and ranks live on."""
    launched: bool = True
    exit_code: int | None = None
    cause: str | None = None
    cause_rank: int | None = None
    one_host: str | None = None
    """The host of all ranks; None where they are on several, or none is known."""
    one_device: str | None = None
    """The device of all ranks, likewise."""
    ranks: Sequence[RankFrame] = ()
    events: tuple[EventLine, ...] = ()
    """Newest last, at most 500."""
    verdict: Verdict | None = None
    verdicts: tuple[Verdict, ...] = ()
    """All that is wrong now; `verdict` is the first of them."""
    missing_steps: int = 0
    """About how many more steps it takes until a rank can be told to be slow; 0 where it can."""
    refused: int = 0
    """Messages that came to the dashboard and could not be read, plus those that agents and observer refused."""
    view_held_s: float | None = None
    """How long the user has held this frame while the run goes on; None for one of this moment."""
    upto: int | None = None
    """The last step of `history` that belongs to a view that is held."""
    history: History | None = None
    """The history of the run, to be read only: it alone grows while a frame is shown."""
    logged: frozenset[str] = frozenset()
    """Names of what the scripts gave to `ddptop.agent.log`."""
    outstanding: int = 0
    """Collectives that live ranks have entered and not finished, all ranks together."""
    checkpoints: bool = False
    """True where its script has told how to save a checkpoint."""
    timeout_s: float | None = None
    """Timeout of collectives in the default process group, the shortest of all ranks; None where it is not known."""
    user: str = ""
    """Whose run it is, where it is somebody else's."""
    ending: str = ""
    """While something is being ended: the processes that are left, and when the escalation goes on."""
    ends_at: float | None = None
    """When the scheduler takes the machine back, in seconds since the epoch; None where nobody does, or it is not
    known."""
    awaits: str = ""
    """While no rank of a host lives: what their start waits for."""
    waiting: str = ""
    """While an action of this dashboard waits for ranks: what it waits for."""
    restarts: tuple[Restart, ...] = ()
    """Oldest first."""
    max_restarts: int = 0
    """How often torchrun may start the group anew."""
    run_id: str = ""
    """What stays its own where another run takes its name; empty where no run is shown."""
    grace_s: float = 5.0
    """Seconds between SIGTERM and SIGKILL of a kill, where nobody asks for others."""
    generation: int = 0
    """How often it was restarted."""
    placed: bool = False
    """True where ranks have coordinates."""
    size_bytes: int | None = None
    """What its directory takes on the disk, logs included; None where nobody has looked."""
    stands: bool = False
    """True where it should complete steps and none of its ranks has for long; see `RankFrame.stands`."""
    hosts: HostFrames = NO_HOSTS
    """Those of a run on several; none of a run on one."""
    unlinked: tuple[int, ...] = ()
    """Ranks on other hosts of which nobody tells, because no link to those hosts could be made."""
    unlinked_why: str = ""
    """Why, one line; empty where that is not known."""

    @property
    def current_step_ms(self) -> float | None:
        """What a step takes now; None where the run stands."""
        return None if self.stands else self.step_ms

    @property
    def standing_s(self) -> float | None:
        """Seconds since the last step of any rank, where the run is to make steps and stands."""
        if not self.stands or self.state not in ("running", "stalled"):
            return None
        known = zip(self.values("step_age_s"), self.values("state"), strict=True)
        return min((age for age, state in known if age is not None and state not in ENDED), default=None)

    @property
    def collective_left_s(self) -> float | None:
        """Seconds until a collective under way may fail, at the earliest; None where its timeout is not known.

        A rank may have entered it right after its last completed step: it is not told how long ago that was.
        """
        if self.timeout_s is None:
            return None
        known = zip(self.values("step_age_s"), self.values("state"), strict=True)
        ages = [age for age, state in known if state not in ENDED]
        # Before its first step a rank may be in one since it began.
        begun = None if self.started_at is None else self.at - self.started_at
        stepped = [begun if age is None else age for age in ages]
        oldest = [age for age in stepped if age is not None]
        return self.timeout_s - max(oldest) if oldest else None

    @property
    def all_ended(self) -> bool:
        """True where every rank has ended, and nobody has said yet that the run is over."""
        return bool(self.ranks) and self.state not in ENDED and ENDED.issuperset(self.values("state"))

    def rank(self, number: int) -> RankFrame | None:
        """Return a rank by its number."""
        if 0 <= number < len(self.ranks) and self.ranks[number].rank == number:
            return self.ranks[number]
        return next((rank for rank in self.ranks if rank.rank == number), None)

    def values(self, field: str) -> Sequence[Any]:
        """Return a field of every rank, in order; for some fields cheaper than to look at the ranks."""
        ranks = self.ranks
        return ranks.values(field) if isinstance(ranks, Ranks) else [getattr(rank, field) for rank in ranks]


def unobserved(frame: Frame, gone: str) -> str:
    """Return one line where nobody tells of the ranks now, with what follows where the observer is `gone`."""
    if frame.state in ENDED:
        return ""
    silent = frame.unobserved_s
    as_of = "" if silent is None else f"; its ranks are as they were {silent:.0f} s ago"
    # A run is there before its first observer, which takes a moment to start.
    if not frame.supervised and (frame.state != "starting" or silent is not None):
        return f"its observer is gone: {gone}{as_of}"
    return f"its observer does not answer{as_of}" if silent is not None else ""


def unheard_hosts(frame: Frame) -> str:
    """Return which hosts of a run that goes on are not heard, in one line; empty where that is none of them."""
    found = [] if frame.state in ENDED else [host for host in frame.hosts if host.is_unheard]
    if len(found) == 1 or not found:
        return found[0].told if found else ""
    named = ", ".join(host.host for host in found[:3])
    return f"{len(found)} hosts are not heard: {named}{', …' if len(found) > 3 else ''}"


def not_linked(frame: Frame) -> str:
    """Return one line on ranks that run on hosts which are not linked; empty where there are none."""
    # Hosts are linked once their ranks have met: while these are on their way there is nothing to say, nor to do.
    if not frame.unlinked or frame.state in ENDED or (frame.state == "starting" and not frame.unlinked_why):
        return ""
    what = f"{'rank' if len(frame.unlinked) == 1 else 'ranks'} {numbers_of(frame.unlinked)}"
    why = f" ({frame.unlinked_why})" if frame.unlinked_why else ""
    return f"{what} run{'s' if len(frame.unlinked) == 1 else ''} on other hosts: not linked{why}"


def numbers_of(ranks: Sequence[int]) -> str:
    """Return numbers of ranks, ascending, as `0-3,8-11`; of many parts the first ones."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    shown = ["-".join(map(str, part)) for part in parts[:4]]
    return ",".join([*shown, "…"] if len(parts) > 4 else shown)


def recording(frame: Frame) -> str:
    """Return how many steps are recorded, where that is not every one: `one step in 8 recorded`."""
    return f"one step in {frame.recorded_every} recorded" if frame.recorded_every > 1 else ""


def time_left(frame: Frame) -> str:
    """Return how long the scheduler leaves the machine to the run, `ends in 3:12:05`; empty where that is not known."""
    return "" if frame.ends_at is None else f"ends in {duration(max(0.0, frame.ends_at - frame.at)).strip()}"


def waits_for(frame: Frame) -> str:
    """Return what a start waits for, the first one also for how long; empty where that is nothing, or not known."""
    if not frame.awaits or frame.started_at is None:
        return ""
    if frame.state != "starting":
        return f"a new start waits for {frame.awaits}"
    return f"waits for {frame.awaits}, for {duration(max(0.0, frame.at - frame.started_at)).strip()}"


def judging(frame: Frame) -> str:
    """Say how long it takes until a rank can be told to be slow, of a run that makes steps; else an empty text."""
    if frame.state != "running" or not frame.step or not frame.missing_steps or frame.verdicts:
        return ""
    return f"judging: about {plural(frame.missing_steps, 'more step')}"


def lasting(frame: Frame) -> str:
    """Return what was wrong with the whole run and stays worth telling after its end; empty where that is nothing."""
    found = next((verdict for verdict in frame.verdicts if verdict.kind == "no_communication"), None)
    return "" if found is None else found.text.partition(" · ")[0]
