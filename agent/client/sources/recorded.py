"""The frames of a run by its record alone, where no observer says how it is.

Its observer has recorded the last ones; where it was ended with its run, as by a reboot, they are of some seconds
before, and the records of the run and of its ranks say how they ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from ddptop.agent import wire
from ddptop.agent.record import recording
from ddptop.agent.run import states
from ddptop.agent.run.rundir import Member, Run, RunDir
from ddptop.agent.text import clean
from ddptop.agent.wire.frames import ENDED, MOST_EVENTS, EventLine, RankFrame, RunFrame

Frames: TypeAlias = tuple[RunFrame, Sequence[RankFrame]]
"""That of a run, and those of its ranks, in order."""

_OF_NOW: Final[Mapping[str, Any]] = {
    "eta_s": None, "samples_per_s": None, "tokens_per_s": None, "flops_per_s": None, "mfu": None,
    "named_from_ms": None, "named_from_share": None, "missing_steps": 0, "held_since": None, "outstanding": 0,
    "stands": False, "goes_on": "", "ending": "", "ends_at": None, "awaits": "", "action": "", "waiting": "",
}  # fmt: skip
"""Of a run that has ended, what only a live one has."""
_OF_NOW_AT_A_RANK: Final[Mapping[str, Any]] = {
    "activity": "", "samples_per_s": None, "tokens_per_s": None, "flops_per_s": None, "mfu": None, "stands": False,
}  # fmt: skip


def read(directory: RunDir, run: Run) -> Frames | None:
    """Return the frames that are recorded; None where there are none, or none that can be read.

    Raises:
        Locked: another process holds the file.
    """
    frame, ranks = recording.read_frames(directory.database, or_locked=True)
    if frame is None or frame.world != run.world:
        return None
    # In place of one that cannot be read that by its record.
    return frame, [ranks.get(each.rank, each) for each in by_record(run, directory.everyone())[1]]


def last(directory: RunDir, run: Run, heard: Frames | None, *, onlooker: bool) -> Frames:
    """Return the last frames of a run that has ended: those of its record, else those that were heard, with its end.

    Args:
        directory: that of the run, which may have another name than its frames have.
        run: its record, with the end.
        heard: the last ones of its observer, where it was heard.
        onlooker: the recording is not to be read, because that may write beside it.

    Raises:
        Locked: another process holds the recording.
    """
    frames = None if onlooker else read(directory, run)
    if heard is not None and (frames is None or (frames[0].state not in ENDED and frames[0].at < heard[0].at)):
        frames = heard
    events: list[wire.Event] = []
    if not onlooker and (frames is None or frames[0].state not in ENDED):
        # Its observer has not told of its end.
        since = 0.0 if frames is None else frames[0].at
        events += [each for each in recording.events_of(directory.database, run) if each.at_ns / 1e9 > since]
    if not onlooker and frames is None:
        events += recording.without_frames(directory.database)
    return concluded(frames or by_record(run, directory.everyone()), run, directory, events)


def by_record(run: Run, members: Mapping[int, Member]) -> Frames:
    """Return frames of what the records of a run and of its ranks say of them before any end; all else is not known."""
    hosts = {member.host for member in members.values()}
    frame = RunFrame(
        run=run.run,
        at=time.time(),
        state="running" if run.state in ENDED else run.state,
        program=clean(run.program, 200),
        world=run.world,
        backend=run.backend,
        device=run.device,
        pid=None if run.torchrun is None else run.torchrun.pid,
        cause=run.cause,
        injected=run.injected or None,
        placement=run.placement,
        started_at=run.created_at_ns / 1e9,
        launched=run.launched,
        one_host=hosts.pop() if len(hosts) == 1 else None,
        max_restarts=run.max_restarts,
        run_id=run.run_id,
        grace_s=run.grace_s,
        generation=max((member.generation for member in members.values()), default=0),
    )
    return frame, [_of_record(rank, members.get(rank)) for rank in range(run.world)]


def _of_record(rank: int, member: Member | None) -> RankFrame:
    if member is None:
        return RankFrame(rank=rank, state="starting", activity="")
    return RankFrame(
        rank=rank,
        host=member.host,
        pid=member.process.pid,
        state="starting",
        activity="",
        log=member.log,
        unkept=member.log is None,
    )


def concluded(frames: Frames, run: Run, directory: RunDir, events: Iterable[wire.Event] = ()) -> Frames:
    """Return the frames of a run with its end, by its record.

    Args:
        frames: its last ones.
        run: its record, with the end.
        directory: that of the run, which may have another name by now.
        events: those that were recorded since the frames.
    """
    frame, ranks = frames
    end: dict[str, Any] = {
        "run": run.run,
        "launched": run.launched,
        "state": run.state,
        "cause": run.cause,
        "cause_rank": run.cause_rank,
        "exit_code": run.exit_code,
        "ended_at": frame.ended_at if run.ended_at_ns is None else run.ended_at_ns / 1e9,
        "supervised": False,
        "orphaned": False,
    }
    if frame.state not in ENDED:
        members = directory.everyone()
        ends = [each.ended.at_ns / 1e9 for each in members.values() if each.ended is not None]
        # Where the end could not be written down.
        end["ended_at"] = end["ended_at"] or max(ends, default=None)
        ranks = [_concluded(each, run, members.get(each.rank)) for each in ranks]
        steps = [each.step for each in ranks]
        known = [step for step in steps if step is not None]
        lines = [EventLine(each.at_ns / 1e9, each.text, each.rank, each.level) for each in events]
        end |= {**_OF_NOW, "step": min(known) if len(known) == len(steps) else frame.step}
        end |= {"events": (*frame.events, *lines)[-MOST_EVENTS:]}
    elif frame.run == run.run:
        return replace(frame, **end), ranks
    logs = [None if each.log is None or each.far else str(directory.output(each.rank)) for each in ranks]
    return replace(frame, **end), [replace(rank, log=log) for rank, log in zip(ranks, logs, strict=True)]


def _concluded(rank: RankFrame, run: Run, member: Member | None) -> RankFrame:
    ended = None if member is None else member.ended
    state = rank.state
    if state not in ENDED:
        state = states.of_rank(states.Evidence(member is not None, ended, alive=False), 0.0)
    killed = states.ended_by_kill(run, ended)
    state = "killed" if killed else states.in_run(state, run.state, rank.rank == run.cause_rank)
    steps = [step for step in (rank.step, None if ended is None else ended.step) if step is not None]
    return replace(
        rank,
        **_OF_NOW_AT_A_RANK,
        state=state,
        step=max(steps, default=None),
        ended=states.describe_rank_end(ended, alive=False),
    )
