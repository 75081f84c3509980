"""The state of a rank and of a run, derived from evidence: the same rules for the dashboard and for every verb.

Pure: the caller gathers the evidence (records, the process table, messages, the observer's recording) and asks
here. A rank that sends no messages is silent, frozen or lost, and not `starting` once it has been seen to run.  An
ended rank does not come to life again, but for one whose own process denies the record of its end.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from ddptop.agent.run.records import Ended, Run
from ddptop.agent.text import clean, span
from ddptop.agent.wire.frames import ENDED, LONGEST, STATES

_KILL_S: Final = 3.0
"""Seconds that a kill takes beside its grace period."""
_IN_ORDER: Final = frozenset({"finished", "ended", "stopped"})

_STOPPED: Final = {"stopped": "stopped by SIGSTOP", "tracing-stop": "stopped by a debugger"}
"""Descriptions of a stopped process, by its status in psutil's spelling."""
_ALL_COME_S: Final = 30.0
"""Seconds after the first rank of a job within which the others on its host come, where their number is not known."""
_BUSY: Final = 50.0
"""Percent of a core from which on a process is called busy, whatever its status was at the moment of the look."""
_SOURCE: Final = re.compile(r"\[/\S+\.(?:cc|cpp|cu|h|hpp):\d+\] ")
"""The line of its source that a library of machine code puts before an error."""
_DOING: Final = {"running": "is busy", "disk-sleep": "waits for the disk", "sleeping": "sleeps", "idle": "sleeps"}


class Evidence(NamedTuple):
    """Evidence on one rank, of the newest generation only; None where something is not known."""

    reported: bool = False
    """The rank has a record in the run directory."""
    ended: Ended | None = None
    """The end of its script, by that record."""
    alive: bool | None = None
    """True where its process lives."""
    status: str = ""
    """Status of that process in psutil's spelling; empty where it was not read since the last message."""
    cpu_percent: float | None = None
    """CPU of that process; 100 is one core."""
    said: str | None = None
    """The state in its last message, received or recorded."""
    activity: str = ""
    """The activity of its main thread in that message."""
    denies: bool = False
    """A message later than `ended` says that its script goes on."""
    heard_s: float | None = None
    """Seconds since its last sign of life, received or recorded."""
    listened_s: float | None = None
    """Seconds since the caller began to receive its messages."""
    ran: bool = False
    """The rank has completed a step, or was held after one."""
    stalled: bool = False
    """Its last step is longer ago than its steps usually take."""


def of_rank(evidence: Evidence, silent_s: float) -> str:
    """Return the state of a rank: one of `STATES`, or the state that a newer agent has sent.

    Args:
        evidence: what is known of the rank.
        silent_s: seconds without a message after which a rank is silent.
    """
    ended = evidence.ended
    # Where the rank's process lives and sends messages that deny its end, another process has written that record.
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
    # The message that the script has ended does not say how: the record, or the end of the process, will.
    return "running" if said == "ended" or said in ENDED else shown(said)


def _is_heard(evidence: Evidence, silent_s: float) -> bool:
    """Say whether there was a sign of life within `silent_s`, or no time for one yet."""
    # Before the caller began to listen, it could hear nothing.
    known = [each for each in (evidence.heard_s, evidence.listened_s) if each is not None]
    return min(known, default=0.0) <= silent_s


def shown(said: str) -> str:
    """Return the state in a message, cleaned and shortened where this version does not know it."""
    return said if said in STATES else clean(said, LONGEST).strip() or "unknown"


def describe(evidence: Evidence, state: str) -> str:
    """Return in a few words the activity of a rank in that state, or the evidence where the rank sends no messages."""
    if state == "frozen" and evidence.status in _STOPPED:
        # A rank without an agent is never heard.
        never = evidence.said is not None and evidence.heard_s is None and evidence.listened_s is None
        heard = "" if never else f"; {_last_heard(evidence)}"
        return f"{_STOPPED[evidence.status]}{heard}"
    if state == "silent":
        return f"{_last_heard(evidence)}{_doing(evidence)}"
    if evidence.ended is not None and state in ENDED:
        return f"its script has ended{lingers(evidence.ended, alive=evidence.alive)}"
    if evidence.said is None and state == "starting":
        return "its process is up, not heard yet" if evidence.reported else "waiting for the process"
    return clean(evidence.activity, 60)


def describe_rank_end(ended: Ended | None, *, alive: bool | None) -> str | None:
    """Return the end of a rank in one line: `exit code 1: ValueError: bad lr`; None where it has not ended."""
    if ended is None:
        return "its process is gone" if alive is False else None
    code = "exit code not known" if ended.exit_code is None else f"exit code {ended.exit_code}"
    # Where in its own source a library found the error would be all of it in a narrow place.
    error = _SOURCE.sub("", ended.error or "")[:300]
    said = error if error and alive else code + (f": {error}" if error else "")
    return said + lingers(ended, alive=alive)


def lingers(ended: Ended, *, alive: bool | None) -> str:
    """Return `; its process waits at exit for thread uploader (train.py:9)`; empty where it does not, or is gone."""
    return f"; its process waits at exit for {ended.awaits}" if alive and ended.awaits else ""


def _last_heard(evidence: Evidence) -> str:
    if evidence.heard_s is not None:
        where = clean(evidence.activity, 20)
        return f"last heard {span(evidence.heard_s)} ago" + (f" in {where}" if where else "")
    if evidence.listened_s is not None:
        return f"not heard for {span(evidence.listened_s)}"
    return "not heard yet"


def _doing(evidence: Evidence) -> str:
    percent, doing = evidence.cpu_percent, _DOING.get(evidence.status, "")
    if percent is not None and percent >= _BUSY:
        return f"; its process is busy ({percent:.0f}% CPU)"
    return f"; its process {doing}" if doing else ""


def of_run(
    ranks: Collection[str],
    *,
    ran: bool,
    record: str,
    told: str | None = None,
    found: str | None = None,
    killed: bool = False,
    frozen: bool = False,
    restarts: bool = False,
) -> str:
    """Return the state of a run.

    Args:
        ranks: the states of its ranks; each state once is enough.
        ran: whether any of them was seen to run in this generation.
        record: the state in the run's record.
        told: the state in the observer's last message, None where there was none.
        found: the state by the process table, None where it was not read.
        killed: whether somebody has killed the run.
        frozen: whether somebody has frozen the run.
        restarts: whether its launcher may start the ranks anew after a failure.
    """
    for each in (record, told, found):
        if each in ENDED:
            return each
    if killed or told == "killing":
        return "killing"
    if frozen:
        return "frozen"
    if told is not None and told not in STATES:
        return shown(told)
    live = set(ranks) - ENDED
    if "held" in live:
        return "held"
    if "paused" in live:
        return "paused" if len(live) == 1 else "pausing"
    for state in ("running", "stalled", "silent", "frozen"):
        if state in live:
            return state
    if ranks and (_IN_ORDER if restarts else ENDED).issuperset(ranks):
        return "ending"
    # Where a script has ended, the run is past its start; the end of the run is for the observer to report.
    return "running" if ran or len(live) < len(set(ranks)) else "starting"


def in_run(rank: str, run: str, culprit: bool) -> str:
    """Return a rank's state in the light of the run's.

    After a kill, a rank that vanished was killed; after a failure too, by torchrun, unless it was the first cause.

    Args:
        rank: the rank's state.
        run: the run's.
        culprit: whether the rank is the first cause of a failure.
    """
    if rank == "lost" and run in ("killed", "killing", "failed"):
        return "failed" if culprit else "killed"
    if (rank == "finished" and run == "stopped") or (rank == "ended" and run in ("finished", "stopped")):
        return run
    if rank == "stalled" and run == "held":
        # It waits for those that are held.
        return "running"
    return run if rank not in ENDED and (run in ENDED or run == "frozen") else rank


def ended_by_kill(run: Run, ended: Ended | None) -> bool:
    """Say whether a rank of a killed run ended in the course of the kill: it may handle SIGTERM, and exit with 0."""
    if run.state != "killed" or ended is None or ended.exit_code:
        return False
    return run.ended_at_ns is None or ended.at_ns >= run.ended_at_ns - round((run.grace_s + _KILL_S) * 1e9)


def describe_end(state: str, why: str | None) -> tuple[str, str]:
    """Return text and level of the event of a run's end."""
    # The cause of a kill begins with "killed by", that of a stop with "stopped by".
    text = why if state in ("killed", "stopped") and why else state if why is None else f"{state}: {why}"
    return f"run {text}", "error" if state == "failed" else "info"


def of_reports(run: Run, reported: Collection[int], at_ns: int) -> str:
    """Return the state of a living run of which only the ranks that have reported are known, at a time of the clock."""
    if run.launched or run.local_world is not None:
        return "running" if len(reported) >= ranks_here(run, len(reported)) else "starting"
    late = abs(at_ns - run.created_at_ns) > _ALL_COME_S * 1e9
    return "running" if reported and (late or len(reported) >= run.world) else "starting"


def has_other_hosts(run: Run, far: Collection[int] = ()) -> bool:
    """Say whether a run has ranks on other hosts, of which those in `far` are known."""
    fewer = run.local_world is not None and run.local_world < run.world
    return bool(far) or fewer or (run.nodes or 1) > 1


def ranks_here(run: Run, known: int) -> int:
    """Return how many ranks of a run report on this host, of which `known` have.

    The ranks that a job has on other hosts never do. A launcher other than torchrun may not say how many those are;
    then the ranks that have reported count as all.
    """
    if run.launched and run.local_world is None:
        return run.world
    return min(run.world, run.local_world or max(1, known))
