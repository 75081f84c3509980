"""What a run and its ranks are like at one moment, by all that is known of them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ddptop.agent import wire
from ddptop.agent.observer.model.ranks.group import Totals
from ddptop.agent.observer.model.ranks.rank import RankModel
from ddptop.agent.run import states
from ddptop.agent.run.identity import Row
from ddptop.agent.run.rundir import Run
from ddptop.agent.wire.frames import ENDED


@dataclass(frozen=True)
class Liveness:
    """The living processes of a run, by the process table."""

    state: str
    supervised: bool
    orphaned: bool
    alive: frozenset[int]
    """Ranks whose process runs."""
    cause: str | None = None
    cause_rank: int | None = None
    frozen_at: float | None = None
    """When its processes were stopped where they stood, in seconds since the epoch; None where they are not."""
    seen: Mapping[int, Row] = field(default_factory=dict)
    """By rank, how its process is, for those whose processes were looked at."""
    at: float | None = None
    """When that was, in seconds since the epoch."""
    spared: frozenset[int] = frozenset()
    """Ranks whose processes were not looked at this time: they are as they were."""


@dataclass(frozen=True, slots=True)
class Supervision:
    """A run as the observer's main thread sees it, which looks after its launcher and carries out actions."""

    state: str
    """`starting`, `running`, `killing`, `finished`, `stopped`, `failed` or `killed`."""
    cause: str | None = None
    """First cause of a failure, one line."""
    refused: int = 0
    """Messages that the observer could not read."""
    ending: str = ""
    """While processes are being ended: those that are left, and the time of the escalation's next stage."""
    ends_at: float | None = None
    """When the scheduler takes the machine back, in seconds since the epoch. None: no scheduler, no limit, or not
    known."""
    awaits: str = ""
    """While no rank of this host lives: what their start waits for, such as the other hosts."""
    action: str = ""
    """The action on all ranks that is under way, and its author: `pause by ada (dashboard, pts/3)`."""
    waiting: str = ""
    """The ranks that this action waits for, where that takes longer than a moment: `pausing: waiting for rank 1`."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A run at one moment."""

    at: float
    """Seconds since the epoch."""
    state: str
    ranks: Mapping[int, str]
    """The state of each rank, as it is told in a run of that state."""
    totals: Totals


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The circumstances of an action at one moment."""

    is_held: bool = False
    """Some ranks are held, or all."""
    is_uneven: bool = False
    """Some ranks are held, and others are not."""
    hang: wire.Verdict | None = None
    """The hang of the present processes that was told last, also when it is over."""
    blamed: tuple[int, int] | None = None
    """The rank that a verdict accuses of being slow, and an ordinary one."""
    growing: int | None = None
    """The rank whose memory grows by a verdict; None: there is none, or it is all of them."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Whoever tells of a run as a whole."""

    run: Run
    """Its record."""
    supervision: Supervision | None
    """The word of its observer's main thread."""
    liveness: Liveness | None
    """The process table."""

    @property
    def cause(self) -> tuple[str | None, int | None]:
        """The first cause of the run's end and the rank it is of, as far as they are known."""
        if self.run.cause is not None and self.run.state in ENDED:
            return self.run.cause, self.run.cause_rank
        if self.liveness is not None and self.liveness.cause is not None:
            return self.liveness.cause, self.liveness.cause_rank
        return (None if self.supervision is None else self.supervision.cause), None

    @property
    def ended(self) -> bool:
        """True once any of them says that the run is over."""
        told = self.run.state, self.supervision and self.supervision.state, self.liveness and self.liveness.state
        return not ENDED.isdisjoint(told)

    def situation(
        self,
        now: float,
        known: float,
        ranks: Mapping[int, RankModel],
        totals: Totals,
        unheard: Collection[int] = (),
        unlinked: Collection[int] = (),
    ) -> Situation:
        """Return what the run is like `now`, where what was heard of its ranks is `known` up to a moment.

        Ranks on an `unheard` host are silent, and those that are `unlinked` from the first step of the others on: a
        rank that nobody hears is not starting for ever.
        """
        own = {rank: model.state(known) for rank, model in ranks.items()}
        ran = any(model.ran for model in ranks.values())
        for rank in unheard:
            if own[rank] not in ENDED:
                own[rank] = "silent"
        for rank in unlinked if ran else ():
            if own[rank] == "starting":
                own[rank] = "silent"
        state = self._state(set(own.values()), ran=ran)
        _, culprit = self.cause
        shown = {each: states.in_run(each, state, False) for each in set(own.values())}
        told = {rank: shown[each] for rank, each in own.items()}
        for rank, model in ranks.items() if state == "killed" else ():
            if model.member is not None and states.ended_by_kill(self.run, model.member.ended):
                told[rank] = "killed"
        if culprit in own:
            told[culprit] = states.in_run(own[culprit], state, True)
        return Situation(now, state, told, totals)

    def _state(self, ranks: set[str], *, ran: bool) -> str:
        live = self.liveness
        return states.of_run(
            ranks,
            ran=ran,
            record=self.run.state,
            told=None if self.supervision is None else self.supervision.state,
            found=None if live is None else live.state,
            killed=self.run.killed_by is not None,
            frozen=live is not None and live.frozen_at is not None,
            restarts=self.run.max_restarts > 0,
        )
