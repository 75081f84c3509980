"""The state of a rank and of a run, said from evidence: the same for everybody who looks.

Pure: who looks gathers the evidence (records, the process table, what it has heard, what the supervisor has
recorded) and asks here. A state is said only from evidence: a rank that cannot be heard is silent, frozen or lost,
and not `starting` once it has been seen to run.  What has ended is not alive again, but for a rank whose own process
denies the record of its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from ddptop.agent.run.records import Ended
from ddptop.agent.text import clean

STATES: Final = (
    "starting", "running", "pausing", "paused", "frozen", "stalled", "silent", "killing",
    "finished", "ended", "stopped", "failed", "killed", "lost",
)  # fmt: skip
"""Every state of a run or a rank that is known here; a newer agent may say others. `frozen`: its processes are
stopped where they stood; `stalled`: alive without progress; `silent`: no sign of life; `ended`: by itself, with what
exit code is not known; `lost`: gone without a word on how it ended."""

ENDED: Final = frozenset({"finished", "ended", "stopped", "failed", "killed", "lost"})

SAID: Final = ("starting", "running", "paused", "ended")
"""The states that a rank says of itself."""

LONGEST: Final = 12
"""Letters of a state that nobody knows here."""

_STOPPED: Final = {"stopped": "stopped by SIGSTOP", "tracing-stop": "stopped by a debugger"}
"""By the status of a process, as psutil spells it: what holds it."""
_BUSY: Final = 50.0
"""A process that takes so many percent of a core or more works, whatever it was at when it was looked at."""
_DOING: Final = {"running": "is busy", "disk-sleep": "waits for the disk", "sleeping": "sleeps", "idle": "sleeps"}


class Evidence(NamedTuple):
    """What is known of one rank, of the newest generation alone; None where nothing is known."""

    reported: bool = False
    """It has a record in the run directory."""
    ended: Ended | None = None
    """How its script ended, by that record."""
    alive: bool | None = None
    """Whether its process is there."""
    status: str = ""
    """How that process is, as psutil spells it; empty where nobody has looked since it was last heard."""
    cpu_percent: float | None = None
    """What that process takes of a core."""
    said: str | None = None
    """Its last word on its state, heard or recorded."""
    activity: str = ""
    """The same, on what its main thread does."""
    denies: bool = False
    """It has said after the time of `ended` that its script goes on."""
    heard_s: float | None = None
    """Seconds since its last sign of life, heard or recorded."""
    listened_s: float | None = None
    """Seconds since somebody began to listen to it."""
    ran: bool = False
    """It has completed a step, or was held after one."""
    stalled: bool = False
    """Its last step is longer ago than its steps take."""


def of_rank(evidence: Evidence, silent_s: float) -> str:
    """Return the state of a rank: one of `STATES`, or a newer agent's own word for it.

    Args:
        evidence: what is known of it.
        silent_s: how long a rank may be unheard before it is silent.
    """
    ended = evidence.ended
    # A record of an end that its own process denies, alive and heard, was written by somebody else in its name.
    if ended is not None and not (evidence.denies and evidence.alive is not False and _is_heard(evidence, silent_s)):
        if ended.exit_code:
            return "failed"
        if ended.stopped_by is not None:
            return "stopped"
        return "ended" if ended.exit_code is None else "finished"
    if evidence.alive is False:
        return "lost"
    if evidence.status in _STOPPED:
        return "frozen"
    if not _is_heard(evidence, silent_s):
        return "silent"
    said = evidence.said
    if said is None or said == "starting":
        return "running" if evidence.ran else "starting"
    if said == "running" and evidence.stalled:
        return "stalled"
    # That its script has ended says nothing of how: its record, or the end of its process, will.
    return "running" if said == "ended" or said in ENDED else word(said)


def _is_heard(evidence: Evidence, silent_s: float) -> bool:
    """Say whether there was a sign of life lately, or no time yet for one."""
    unheard_s = evidence.listened_s if evidence.heard_s is None else evidence.heard_s
    return unheard_s is None or unheard_s <= silent_s


def word(said: str) -> str:
    """Return a state as somebody else says it, fit to be shown."""
    return said if said in STATES else clean(said, LONGEST).strip() or "unknown"


def describe(evidence: Evidence, state: str) -> str:
    """Return in a few words what a rank in that state does, and where it cannot say so itself, what is known."""
    if state == "frozen" and evidence.status in _STOPPED:
        return f"{_STOPPED[evidence.status]}; {_last_heard(evidence)}"
    if state == "silent":
        return f"{_last_heard(evidence)}{_doing(evidence)}"
    if evidence.ended is not None and state in ENDED:
        return "its script has ended"
    if evidence.said is None and state == "starting":
        return "its process is up, not heard yet" if evidence.reported else "waiting for the process"
    return clean(evidence.activity, 60)


def _last_heard(evidence: Evidence) -> str:
    if evidence.heard_s is not None:
        where = clean(evidence.activity, 20)
        return f"last heard {_seconds(evidence.heard_s)} ago" + (f" in {where}" if where else "")
    if evidence.listened_s is not None:
        return f"not heard for {_seconds(evidence.listened_s)}"
    return "not heard yet"


def _doing(evidence: Evidence) -> str:
    percent, doing = evidence.cpu_percent, _DOING.get(evidence.status, "")
    if percent is not None and percent >= _BUSY:
        return f"; its process is busy ({percent:.0f}% CPU)"
    return f"; its process {doing}" if doing else ""


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def of_run(
    ranks: Collection[str],
    *,
    ran: bool,
    record: str,
    told: str | None = None,
    found: str | None = None,
    killed: bool = False,
    frozen: bool = False,
) -> str:
    """Return the state of a run.

    Args:
        ranks: the states of its ranks; each state once is enough.
        ran: whether any of them was seen to run in this generation.
        record: the state in the run's record.
        told: the supervisor's last word, None where none was heard.
        found: the state that the process table tells, None where nobody has looked.
        killed: whether somebody has asked for its end.
        frozen: whether somebody has stopped its processes where they stood.
    """
    for each in (record, told, found):
        if each in ENDED:
            return each
    if killed or told == "killing":
        return "killing"
    if frozen:
        return "frozen"
    if told is not None and told not in STATES:
        return word(told)
    live = set(ranks) - ENDED
    if "paused" in live:
        return "paused" if len(live) == 1 else "pausing"
    for state in ("running", "stalled", "silent", "frozen"):
        if state in live:
            return state
    # Where a script has ended the run is past its start; how it ends is for who started the ranks to say.
    return "running" if ran or len(live) < len(set(ranks)) else "starting"


def in_run(rank: str, run: str, culprit: bool) -> str:
    """Return a rank's state as the run's explains it.

    After a kill a vanished rank was killed; after a failure too, by torchrun, unless it was the first to go.

    Args:
        rank: the rank's state.
        run: the run's.
        culprit: whether the rank is the first cause of a failure.
    """
    if rank == "lost" and run in ("killed", "killing", "failed"):
        return "failed" if culprit else "killed"
    if (rank == "finished" and run == "stopped") or (rank == "ended" and run in ("finished", "stopped")):
        return run
    return run if rank not in ENDED and (run in ENDED or run == "frozen") else rank


def of_reports(reported: Iterable[int], world: int) -> str:
    """Return how far a live run is, for who only knows which ranks have reported: the supervisor and its stand-ins."""
    return "running" if len(set(reported)) >= world else "starting"
