"""Ranks that nobody prepared join their run in the middle of their training, and leave it again.

Each has Python 3.14 or newer, whose `sys.remote_exec` (PEP 768) runs a script in the main thread of another process.
All ranks join at the end of the same step, or none does: actions are for all of them.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.actions.action import NAP_S, Action, Turns, aside
from ddptop.agent.outside import rights
from ddptop.agent.run import identity
from ddptop.agent.run.files import joins
from ddptop.agent.run.files.joins import Answer
from ddptop.agent.run.rundir import Member, Run, RunDir
from ddptop.agent.startup.version import VERSION
from ddptop.agent.text import clean_line, plural, ranks_in_spans
from ddptop.agent.wire.vocabulary.refusals import Refused

COMES_S: Final = 15.0
"""Seconds in which the main thread of a rank has to come to Python code."""
_PATIENCE_S: Final = 60.0
"""Seconds without a further step of any rank after which a join is given up."""
_LEAVES_S: Final = 15.0
_HEARD_S: Final = 10.0
_TRIES: Final = 3
_NOTICE_S: Final = 0.5
"""Seconds in which all ranks have read at which step they join."""
_LEAST_COMMON: Final = 2
"""Boundaries by which two ranks' counts are compared at least."""
_LIBRARIES: Final = ("msgspec", "zmq")
"""Packages that the agent of a rank needs."""
_NONE: Final = "none has joined"
_ASK: Final = """
import sys
if not hasattr(sys, "remote_exec"):
    sys.exit("is Python " + sys.version.split()[0])
try:
    sys.remote_exec(int(sys.argv[1]), sys.argv[2])
    print("asked")
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def join(action: Action) -> Turns[str]:
    """Have the agent join all ranks at the end of the same step.

    Raises:
        Refused: a rank cannot, and none has joined.
        Cancelled: the same, by somebody's wish.
    """
    directory = action.directory
    run, members = directory.read(), directory.members()
    if not run.outside or all(each.by_agent for each in members.values()):
        raise Refused("its ranks have the agent already")
    if missing := sorted(set(range(run.world)) - members.keys()):
        raise Refused(f"{ranks_in_spans(missing)} cannot be reached from here, and an action is for all ranks; {_NONE}")
    yield from aside(partial(_check, directory, members))
    for left in reversed(range(_TRIES)):
        try:
            yield from _try_to_join(action, run, members)
            break
        except _Missed:
            if not left:
                raise
    yield from _hear(action)
    took_s = action.clock() - action.began
    return f"the agent has joined {plural(len(members), 'rank')} in {took_s:.1f} s; steps are counted from there"


def _try_to_join(action: Action, run: Run, members: Mapping[int, Member]) -> Turns[None]:
    directory = action.directory
    request = joins.Request(
        action.clock() + COMES_S,
        _folder("ddptop.agent"),
        {name: _folder(name) for name in _LIBRARIES},
        VERSION,
        {str(each.process.pid): rank for rank, each in members.items()},
    )
    try:
        folder = yield from aside(partial(joins.begin, directory.path, request))
        yield from aside(partial(_ask_all, folder / joins.SCRIPT, run, members))
        yield from _await_all(action, folder, members)
    except Refused:
        joins.forget(directory.path)
        yield from _take_back(action)
        raise
    finally:
        joins.forget(directory.path)


def _take_back(action: Action) -> Turns[None]:
    """Have those leave that have joined, and others not."""
    give_up, due = action.clock() + _LEAVES_S, action.clock() + _NOTICE_S
    while (joined := _joined(action.directory)) or action.clock() < due:
        if action.clock() > give_up:
            said = f"{ranks_in_spans(joined)} joined alone, and came to no further step"
            raise Refused(f"{said}; `ddptop leave {action.directory.name}` when the run goes on")
        if joined:
            action.ranks.tell(wire.Leave(0), joined)
        yield NAP_S


def _joined(directory: RunDir) -> list[int]:
    return [
        rank
        for rank, member in directory.members().items()
        if member.by_agent and not member.ended and identity.may_live(member.process)
    ]


class _Missed(Refused):
    """A rank has passed the step at which all were to join."""


def leave(action: Action) -> Turns[str]:
    """Have the agent leave all ranks that it has joined.

    Raises:
        Refused: a rank is held, or has come to no step.
    """
    directory, ranks = action.directory, action.ranks
    run = directory.read()
    if not run.outside:
        raise Refused("its ranks were started with the agent, which stays")
    ranks.ranks = asked = _joined(directory)
    if not asked:
        raise Refused("no rank has the agent")
    replies = yield from ranks.ask(wire.Leave(0), asked)
    refused = next((f"rank {rank}: {reply.text}" for rank, reply in replies.items() if not reply.done), "")
    if refused:
        ranks.tell(wire.Leave(0, cancelled=True), asked)
        raise Refused(refused)
    action.wait()
    while left := _joined(directory):
        if action.is_cancelled or action.waited_s > _LEAVES_S:
            ranks.tell(wire.Leave(0, cancelled=True), left)
            raise Refused(
                f"{ranks_in_spans(left)} came to the end of no step within {action.waited_s:.0f} s, and still "
                f"{'has' if len(left) == 1 else 'have'} the agent; try again when the run goes on"
            )
        action.tell(f"waiting for {ranks_in_spans(left)} to come to the end of a step")
        yield NAP_S
        # Again: whoever has come a moment before may not have been reached.
        ranks.tell(wire.Leave(0), left)
    return f"the agent has left {plural(len(asked), 'rank')}; nothing of it is left in the training"


def _folder(package: str) -> str:
    return os.path.abspath(importlib.import_module(package).__path__[0])


def _check(directory: RunDir, members: Mapping[int, Member]) -> None:
    """Raise `Refused` where a rank cannot be asked, before any is."""
    for rank, member in members.items():
        if problem := _problem(directory, member):
            raise Refused(f"rank {rank} {problem}; {_NONE}")


def _problem(directory: RunDir, member: Member) -> str:
    process, pid = member.process, member.process.pid
    row = identity.look(process)
    if row is None:
        return "has ended"
    if row.status in identity.STOPPED:
        return "is stopped, by a signal or a debugger: what stopped it has to continue it first"
    if row.uid != os.geteuid():
        return f"is of user {row.uid}, whose processes cannot reach this run: run ddptop as that user (sudo -u)"
    if forbidden := rights.may_look(process):
        return f"cannot be asked: {forbidden}"
    try:
        reached = str(directory.path), _folder("ddptop.agent")
        reaches = all(os.path.samefile(f"/proc/{pid}/root{path}", path) for path in reached)
    except OSError:
        reaches = False
    if not reaches:
        return "is in a container or another root, where it cannot reach this run: run ddptop in there"
    if identity.variable(pid, "PYTHON_DISABLE_REMOTE_DEBUG"):
        return "runs with PYTHON_DISABLE_REMOTE_DEBUG, which forbids it"
    if any("disable-remote-debug" in each.replace("_", "-") for each in identity.command(pid)[:8]):
        return "runs with -X disable-remote-debug, which forbids it"
    return ""


def _ask_all(script: Path, run: Run, members: Mapping[int, Member]) -> None:
    for rank, member in members.items():
        # Since it was checked, another process may have its pid.
        gone = "" if identity.is_alive(member.process) else "has ended"
        if problem := gone or _ask(script, run, member.process.pid):
            raise Refused(f"rank {rank} {problem}; {_NONE}")


def _ask(script: Path, run: Run, pid: int) -> str:
    """Have Python run the script in a process; return why that fails, empty where it does not.

    Only the same version of Python can, so the executable of the process itself does it.
    """
    try:
        root, executable = f"/proc/{pid}/root", os.readlink(f"/proc/{pid}/exe")
        command = [executable, "-I", "-S", "-c", _ASK, str(pid), str(script)]
        if not os.path.samefile(root, "/"):
            command = ["chroot", root, *command]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be asked: {clean_line(str(error))}"
    # Its exit status may be gone: the main thread takes that of every child.
    if done.stdout.strip() == "asked":
        return ""
    said = clean_line((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    if said.startswith("is Python"):
        return (
            f"{said}, and joining takes 3.14 or newer; start the next one with "
            f"`ddptop launch --world {run.world} {run.program}`"
        )
    return f"cannot be asked: {said}"


def _await_all(action: Action, folder: Path, members: Mapping[int, Member]) -> Turns[None]:
    """Return once all ranks have joined."""
    ranks, run = sorted(members), action.directory.name
    chosen: dict[int, int] = {}
    steps = max(each.steps for each in members.values())
    since: tuple[float, int] | None = None
    action.wait()
    while True:
        action.check(_NONE)
        found = joins.answers(folder, ranks)
        _check_answers(found, members, chosen)
        if not (left := [rank for rank in ranks if rank not in found or found[rank].state != "joined"]):
            return
        if away := [rank for rank in left if rank not in found]:
            action.tell(f"waiting for {ranks_in_spans(away)}: in native code, no Python runs there")
            if action.waited_s > COMES_S:
                known = f" ({action.hang})" if action.hang else ""
                raise Refused(
                    f"{ranks_in_spans(away)}: in native code for {COMES_S:.0f} s, where no Python runs{known}; "
                    f"{_NONE}; `ddptop stacks {run}` shows where"
                )
        else:
            if coming := [rank for rank, each in found.items() if each.state == "came"]:
                action.tell(f"waiting for {ranks_in_spans(coming)} to import its modules")
            else:
                action.tell(f"waiting for {ranks_in_spans(left)} to come to the end of a step")
            passed = sum(each.first + len(each.boundaries) for each in found.values())
            if action.stuck_s(passed) > _PATIENCE_S:
                raise Refused(f"no optimizer of torch has stepped for {_PATIENCE_S:.0f} s; {_NONE}")
            since = since or (action.clock(), passed)
            took_s = action.clock() - since[0]
            if not chosen and took_s >= _NOTICE_S:
                # As many as are made until all ranks have read it, and one.
                margin = 1 + math.ceil((passed - since[1]) / len(ranks) * _NOTICE_S / took_s)
                chosen = chosen_at(found, ranks, margin)
                if chosen:
                    joins.choose(folder, joins.Step({str(rank): at for rank, at in chosen.items()}, steps))
        yield NAP_S / 4


def _check_answers(found: Mapping[int, Answer], members: Mapping[int, Member], chosen: Mapping[int, int]) -> None:
    for rank, member in members.items():
        answer = found.get(rank)
        if answer is not None and answer.state == "refused":
            raise Refused(f"rank {rank}: {answer.why}; {_NONE}")
        if answer is not None and answer.state != "joined" and _last(answer) >= chosen.get(rank, 1 << 62):
            raise _Missed(f"rank {rank} has passed the step at which all were to join; {_NONE}; try again")
        if not identity.is_alive(member.process):
            raise Refused(f"rank {rank} has ended meanwhile; {_NONE}")
        if identity.is_stopped(member.process):
            raise Refused(f"rank {rank} was stopped meanwhile; {_NONE}")


def chosen_at(found: Mapping[int, Answer], ranks: list[int], margin: int) -> dict[int, int]:
    """Return the boundary at which each rank is to join, as it counts them; empty where that is not known yet.

    Args:
        found: the answers of the ranks.
        ranks: all of them.
        margin: boundaries by which it is ahead of the furthest of them.
    """
    if any(rank not in found or not found[rank].boundaries for rank in ranks):
        return {}
    ahead = {ranks[0]: 0}
    reached = [ranks[0]]
    while reached:
        one = reached.pop()
        for other in ranks:
            if other not in ahead and (by := _ahead(found[one], found[other])) is not None:
                ahead[other] = ahead[one] + by
                reached.append(other)
    if len(ahead) < len(ranks):
        return {}
    at = max(_last(found[rank]) - ahead[rank] for rank in ranks) + margin
    return {rank: at + ahead[rank] for rank in ranks}


def _last(answer: Answer) -> int:
    return answer.first + len(answer.boundaries) - 1


def _ahead(one: Answer, other: Answer) -> int | None:
    """Return by how much the number of a boundary is larger in the other rank; None where that is not known.

    At the same boundary the groups of both have made as many calls.
    """
    own = dict(enumerate(one.boundaries, one.first))
    others = dict(enumerate(other.boundaries, other.first))
    fits = []
    for by in range(other.first - _last(one), _last(other) - one.first + 1):
        common = [(own[number], others[number + by]) for number in own if number + by in others]
        groups = [name for name in common[0][0] if name in common[0][1]] if common else []
        is_same = all(mine.get(name) == theirs.get(name) for mine, theirs in common for name in groups)
        moves = any(common[0][0][name] != common[-1][0].get(name) for name in groups)
        if len(common) >= _LEAST_COMMON and is_same and moves:
            fits.append(by)
    return fits[0] if len(fits) == 1 else None


def _hear(action: Action) -> Turns[None]:
    """Return once all ranks are heard, as those of any other run."""
    ranks, give_up = action.ranks, action.clock() + _HEARD_S
    while True:
        with contextlib.suppress(Refused):
            # What they have said before they left last is known still.
            if ranks.find() and len((yield from ranks.ask(wire.Inspect(0, stacks=False)))) == len(ranks.ranks):
                return
        if action.clock() > give_up:
            raise Refused("the agent has joined all ranks, and not all are heard so far; `ddptop status` tells more")
        yield NAP_S
