"""All that is known of a run at one moment: its frame and those of its ranks together.

`None` is "not known".  All text in here is clean: no control characters, no escape sequences. It is not markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddptop.agent.text import ranks_in_spans, span
from ddptop.agent.wire.frames import ENDED, NO_HOSTS, HostFrames, RankFrame, RunFrame

if TYPE_CHECKING:
    from ddptop.agent.client.history.history import History


class Frame(RunFrame, frozen=True, kw_only=True, tag=False, gc=True):
    """One run at one moment, with its ranks, in order; a rank not heard of yet is there as `starting`.

    What its observer does not know is what this dashboard adds.
    """

    unobserved_s: float | None = None
    """Seconds since the observer was heard last, where it is silent: the ranks are shown as they were then."""
    ranks: Sequence[RankFrame] = ()
    view_held_s: float | None = None
    """How long the user has held this frame while the run goes on; None for one of this moment."""
    upto: int | None = None
    """The last step of `history` that belongs to a view that is held."""
    history: History | None = None
    """The history of the run, to be read only: it alone grows while a frame is shown."""
    user: str = ""
    """The owner, where the run is somebody else's."""
    size_bytes: int | None = None
    """Bytes of its directory on the disk, logs included; None where nobody has looked."""
    unmet: bool = False
    """True of a group that nobody has prepared, and nobody has attached to yet."""
    hosts: HostFrames = NO_HOSTS
    """Those of a run on several; none of a run on one."""

    @property
    def current_step_ms(self) -> float | None:
        """The time of a step now; None where the run stands."""
        return None if self.stands else self.step_ms

    @property
    def standing_s(self) -> float | None:
        """Seconds since the last step of any rank, where the run is to make steps and stands."""
        if not self.stands or self.state not in ("running", "stalled"):
            return None
        known = zip(self.values("step_age_s"), self.values("state"), strict=True)
        return min((age for age, state in known if age is not None and state not in ENDED), default=None)

    @property
    def standing(self) -> str:
        """What a run does that makes no steps: `no step for 8 s`; empty where it makes some, or is not to."""
        if (standing_s := self.standing_s) is None:
            return ""
        return self.goes_on or f"no step for {span(standing_s)}"

    @property
    def held(self) -> str:
        """What the run is held for: `held: rank 0, counting memory, 2 s`; empty where it is not."""
        held = [rank for rank in self.ranks if rank.state == "held"] if self.state == "held" else []
        return f"held: {ranks_in_spans(rank.rank for rank in held)}, {held[0].activity}" if held else ""

    @property
    def collective_left_s(self) -> float | None:
        """Seconds until a collective under way may fail, at the earliest; None where its timeout is not known.

        A rank may have entered it right after its last completed step: it is not known how long ago that was.
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
        """Return a field of every rank, in order."""
        return [getattr(rank, field) for rank in self.ranks]


def whole(
    run: RunFrame,
    ranks: Sequence[RankFrame],
    hosts: HostFrames = NO_HOSTS,
    history: History | None = None,
    unobserved_s: float | None = None,
) -> Frame:
    """Return the frame of a run and those of its ranks together."""
    told = {name: getattr(run, name) for name in RunFrame.__struct_fields__}
    return Frame(**told, ranks=ranks, hosts=hosts, history=history, unobserved_s=unobserved_s)
