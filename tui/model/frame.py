"""The contents of one painting of the screen: an immutable frame of a run.

All that widgets show of a run is in its `Frame`.  `None` is "not known" and is drawn as a dim dash.
All text in here has been cleaned: no control characters, no escape sequences.  It is still
not markup: draw it with `rich.text.Text` or `Segment`, never as a markup string.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddptop.agent.run.states import ENDED as ENDED
from ddptop.agent.run.states import STATES as STATES
from ddptop.agent.text import in_ms, plural, ranks_in_spans, span
from ddptop.agent.wire import HELD as HELD
from ddptop.agent.wire.frames import EventLine as EventLine
from ddptop.agent.wire.frames import RankFrame as RankFrame
from ddptop.agent.wire.frames import Restart as Restart
from ddptop.agent.wire.frames import RunFrame
from ddptop.agent.wire.host_frames import NO_HOSTS, HostFrames
from ddptop.tui.drawing.units import duration

if TYPE_CHECKING:
    from ddptop.tui.model.history.history import History


def with_rank(text: str, rank: int | None, host: str = "") -> str:
    """Return what happened, with its rank in front where the text does not begin with it, and the rank's `host`."""
    text = text.removeprefix(f"rank {rank}: ")
    named = rank is None or text.startswith(
        (f"rank {rank} ", f"rank {rank}'s ", f"the memory of rank {rank} ", "ranks ")
    )
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
    """Say whether the report has something to show: an end that is to be explained, or what a kill has ended."""
    return has_report(frame) or frame.state == "killed"


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


def unobserved(frame: Frame, gone: str) -> str:
    """Return one line where nothing is heard of the ranks now, with what follows where the observer is `gone`."""
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
    why = f" ({frame.unlinked_why})" if frame.unlinked_why else ""
    what = ranks_in_spans(frame.unlinked)
    return f"{what} run{'s' if len(frame.unlinked) == 1 else ''} on other hosts: not linked{why}"


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
    """Say why no rank is named, of a run that makes steps: none is slow, or it is too early to tell; else nothing."""
    if frame.state != "running" or not frame.step or frame.verdicts or frame.stands:
        return ""
    if frame.world == 1:
        return "one rank: there is no other to compare it with"
    if frame.missing_steps:
        return f"judging: about {plural(frame.missing_steps, 'more step')} until a slow rank can be named"
    if frame.named_from_ms is None:
        return ""
    return f"no slow rank (delays from {in_ms(frame.named_from_ms)} on would be named)"


def lasting(frame: Frame) -> str:
    """Return what was wrong with the whole run and stays worth a line after its end; empty where that is nothing."""
    found = next((verdict for verdict in frame.verdicts if verdict.kind == "no_communication"), None)
    return "" if found is None else found.text.partition(" · ")[0]
