"""What is said of a run in words, by its frame; the text is not markup."""

from __future__ import annotations

from typing import Final

from ddptop.agent.client.frame import Frame
from ddptop.agent.text import in_ms, plural, ranks_in_spans
from ddptop.agent.wire.frames import ENDED, OUTSIDE, ByLooks
from ddptop.tui.drawing.units import DASH, age, duration

JOINABLE: Final = 14
"""Minor version of Python 3 from which on an agent can join a process."""


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
    if frame.state == "running" and frame.known_by == OUTSIDE and not frame.verdicts:
        return _judging_looks(frame)
    if frame.state != "running" or not frame.step or frame.verdicts or frame.stands:
        return ""
    if frame.world == 1:
        return "one rank: there is no other to compare it with"
    if frame.missing_steps:
        return f"judging: about {plural(frame.missing_steps, 'more step')} until a slow rank can be named"
    if frame.named_from_ms is None:
        return ""
    return f"no slow rank (delays from {in_ms(frame.named_from_ms)} on would be named)"


def _judging_looks(frame: Frame) -> str:
    looks = frame.by_looks
    if looks is not None and looks.problem:
        return looks.problem
    if frame.world == 1:
        return "one rank: there is no other to compare it with"
    if frame.named_from_share is None:
        return "judging by looks: about half a minute until a slow rank can be named"
    return f"no slow rank (one that waits {100 * frame.named_from_share:.0f} points less would be named)"


def outside(frame: Frame, joins: str) -> str:
    """Return how a run is known that nobody prepared, and what shows more of it; empty of others.

    Args:
        frame: the run.
        joins: the key or the command by which an agent joins its ranks.
    """
    if frame.known_by != OUTSIDE or frame.state in ENDED:
        return ""
    steps = "steps by log" if frame.from_log else "steps not known"
    return f"{steps}, seen from outside · {_more(frame, joins)}"


def by_looks(frame: Frame) -> str:
    """Return the time of all ranks by phase, `by looks (± 3): wait 38%, forward 31%`; empty where there are none."""
    looks = frame.by_looks
    if looks is None or not looks.looks:
        return ""
    parts = sorted(looks.shares.items(), key=lambda each: -each[1])
    shown = ", ".join(f"{phase} {share:.0%}" for phase, share in parts)
    return f"by looks (± {max(1.0, 100 * looks.error):.0f}): {shown}"


def place_of_looks(looks: ByLooks | None) -> str:
    """Return the line on which a rank stands, or is found most often, or why it is not known."""
    if looks is not None and looks.problem:
        return looks.problem
    if looks is not None and looks.still_s is not None and looks.still_at:
        return f"still {age(looks.still_s).strip()}: {looks.still_at}"
    if looks is None or looks.line_share is None:
        return DASH
    return f"{looks.line_share:.0%} at {looks.line}"


def stepless(frame: Frame) -> str:
    """Say why a view of steps is empty, of a run that is seen from outside; else nothing."""
    if frame.known_by != OUTSIDE:
        return ""
    return "the log names steps, and not their times" if frame.from_log else "no step is seen from outside"


def can_be_joined(frame: Frame) -> bool:
    """Say whether the agent can join a run that is seen from outside: the Python of all its ranks allows it."""
    return frame.known_by == OUTSIDE and _minor(frame) >= JOINABLE


def _minor(frame: Frame) -> int:
    """Return the x of the oldest Python 3.x of the ranks; 0 where it is not known of all."""
    versions = [version.split(".") for version in frame.values("python_version") if version]
    numbers = [int(minor) for major, minor, *_ in versions if major == "3" and minor.isdecimal()]
    return min(numbers) if len(numbers) == frame.world else 0


def _more(frame: Frame, joins: str) -> str:
    if can_be_joined(frame):
        return f"{joins} joins (Python 3.{_minor(frame)})"
    return f"next time: … -m ddptop.agent {frame.program}"


def lasting(frame: Frame) -> str:
    """Return what was wrong with the whole run and stays worth a line after its end; empty where that is nothing."""
    found = next((verdict for verdict in frame.verdicts if verdict.kind == "no_communication"), None)
    return "" if found is None else found.text.partition(" · ")[0]
