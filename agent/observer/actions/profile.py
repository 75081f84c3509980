"""Profiles the same whole steps of several ranks, and brings their traces together into one; no rank is held.

Ranks on other hosts hand their traces over in pieces.  A process of its own joins them, because that takes seconds in
which the observer has other things to do.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from ddptop.agent import wire
from ddptop.agent.observer.actions.action import Action, Diagnosed, Turns, aside
from ddptop.agent.observer.actions.diagnosis import OverSteps, check_room, chosen
from ddptop.agent.record import diagnoses
from ddptop.agent.record.profiles.parts import PARTS
from ddptop.agent.run import hosts
from ddptop.agent.run.switches.thresholds import Profile as Settings
from ddptop.agent.text import clean_line, ranks_in_spans
from ddptop.agent.wire.vocabulary.refusals import Refused

STANDS_S: Final = 30.0
"""Seconds for which a rank is accused before the observer profiles it by itself."""
UNASKED: Final = "the observer"
"""The author of a profile that the observer makes by itself."""
JOIN_S: Final = 300.0
"""Seconds that joining the traces may take."""
_SILENT: Final = wire.Reply(0, False, "it does not answer")
_FREE: Final = 1 << 30
"""Bytes that have to be free on the disk."""


class Profiles(OverSteps[wire.Profiled]):
    """The traces of the same whole steps of several ranks."""

    paused = "paused, and what is profiled are steps; resume it first"
    apart = "there are no steps to profile on all of them"
    fast = "its steps are too fast for this; `ddptop profile` again"

    def over(self, first: int) -> wire.Command:
        """Return the question for the steps from this one on."""
        return wire.Profile(0, self.token, self.number, first, self.steps)

    def cancelling(self) -> wire.Command:
        """Return the command after which no rank makes the profile that was asked for last."""
        return wire.Profile(0, self.token, self.number, 1, cancelled=True)

    def found(self, reply: wire.Reply) -> wire.Profiled | None:
        """Return the trace that a rank has written."""
        return reply.profiled

    def waiting(self, boundary: int, behind: Mapping[int, int]) -> str:
        """Return the line on ranks that have not written their traces."""
        last, step = boundary + self.steps, min(behind.values())
        doing = ("write" if len(behind) > 1 else "writes") + " the trace" if step >= last else f"at step {step:,}"
        return f"profiling steps {boundary + 1:,} to {last:,}: {ranks_in_spans(behind)} {doing}"


class OnVerdict:
    """Profiles that the observer makes by itself, where its user has asked for that: one for each accusation."""

    def __init__(self, settings: Settings) -> None:
        """Accuse nobody yet."""
        self._left = settings.most if settings.on_verdict else 0
        self._accused: int | None = None
        self._since = 0.0
        self._is_made = False

    def not_made(self) -> None:
        """Take note that the last one was refused, or made way: it was none of those that may be made."""
        self._left += 1

    def due(self, blamed: tuple[int, int] | None, now: float, *, is_free: bool) -> wire.Act | None:
        """Return the command for a profile once a rank has been accused for so long.

        Args:
            blamed: the rank that a verdict accuses at this moment, and an ordinary one.
            now: in seconds.
            is_free: no other action is under way, and the ranks make steps.
        """
        accused = None if blamed is None else blamed[0]
        if accused != self._accused:
            self._accused, self._since, self._is_made = accused, now, False
        if accused is None or self._is_made or not self._left or not is_free or now - self._since < STANDS_S:
            return None
        self._left, self._is_made = self._left - 1, True
        return wire.Act(0, "profile", UNASKED, culprit=True, steps=3)


def profile(action: Action) -> Turns[Diagnosed]:
    """Profile some ranks, and keep the profile.

    Raises:
        Refused: there is no profile, and why.
        Cancelled: the wait was cancelled.
        Hung: the run hangs.
    """
    command, blamed = action.command, action.circumstances.blamed
    action.ranks.ranks = chosen(action.ranks, command, blamed, "no verdict accuses a rank")
    if not 1 <= command.steps <= wire.MOST_PROFILED:
        raise Refused(f"a profile has 1 to {wire.MOST_PROFILED} steps")

    def begin() -> Profiles:
        check_room(action.directory.path, _FREE)
        return Profiles(diagnoses.new(action.directory, "profile"), command.steps)

    asked = yield from aside(begin)
    made = yield from asked.whole(action.ranks, _profiled(action, asked, blamed))
    yield from aside(partial(diagnoses.bound_profiles, action.directory))
    return made


def _profiled(action: Action, asked: Profiles, blamed: tuple[int, int] | None) -> Turns[Diagnosed]:
    wanted = list(action.ranks.ranks)
    boundary, traces = yield from asked.gather(action)
    action.tell("joining the traces")
    culprit, peer = blamed if blamed is not None and set(blamed) <= set(wanted) else (None, None)
    parts = yield from _gathered(action, asked, traces)
    said = {
        "run": action.directory.name,
        "steps": [boundary + 1, boundary + asked.steps],
        "asked": wanted,
        "culprit": culprit,
        "peer": peer,
        "at": time.time(),
        "unasked": action.command.who == UNASKED,
        "ranks": parts,
    }
    yield from aside(partial((asked.folder / PARTS).write_text, json.dumps(said)))
    yield from _join(asked.folder, action)
    made = yield from aside(partial(diagnoses.read, "profile", asked.folder))
    assert made is not None
    return Diagnosed(asked.folder, next(iter(made.found.sentences), made.found.compared))


def _gathered(action: Action, asked: Profiles, traces: Mapping[int, wire.Profiled]) -> Turns[list[dict[str, object]]]:
    """Bring the traces of other hosts here, and return what is said of each rank to the process that joins them."""
    here = yield from aside(action.directory.members)
    told = yield from aside(partial(hosts.read_hosts, action.directory.path))
    states = {rank: state for state in told for rank in state.ranks}
    parts: list[dict[str, object]] = []
    for rank, trace in sorted(traces.items()):
        file = asked.folder / f"rank-{rank}.json.gz"
        if rank not in here:
            yield from _fetch(action, rank, asked.token, file, trace.size)
        state = states.get(rank)
        phases = [
            [each.step, [[span.begin_ns, span.end_ns, span.phase] for span in each.phases]] for each in trace.steps
        ]
        parts.append({
            "rank": rank,
            "host": action.ranks.hosts.get(rank, ""),
            # Times there are ahead by the offset.
            "offset_ns": -int((state.offset_ms or 0.0) * 1e6) if state is not None else 0,
            "error_ns": None if state is None or state.offset_error_ms is None else int(state.offset_error_ms * 1e6),
            "file": file.name,
            "phases": phases,
        })  # fmt: skip
    return parts


def _fetch(action: Action, rank: int, token: str, file: Path, size: int) -> Turns[None]:
    """Copy the trace of a rank on another host, in pieces."""
    ranks, offset = action.ranks, 0
    with open(file, "xb") as copy:
        while offset <= min(size, wire.LARGEST_PROFILE):
            action.check()
            question = wire.ReadProfile(0, token, offset)
            # A link between hosts may lose an answer.
            replies = (yield from ranks.ask(question, [rank])) or (yield from ranks.ask(question, [rank]))
            reply = replies.get(rank, _SILENT)
            if reply.piece is None or reply.piece.offset != offset:
                raise Refused(f"rank {rank} does not hand over its trace: {reply.text}")
            if not reply.piece.content:
                return
            offset += yield from aside(partial(copy.write, reply.piece.content))
    raise Refused(f"rank {rank} hands over more than its trace")


def _join(folder: Path, action: Action) -> Turns[None]:
    command = [sys.executable, "-m", "ddptop.agent.record.profiles", str(folder)]
    give_up = action.clock() + JOIN_S
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    except OSError as problem:
        raise Refused(f"the traces cannot be joined: {clean_line(str(problem))}") from problem
    with process:
        try:
            # Of what it says only a refusal's few lines, for which the pipe has room.
            while process.poll() is None:
                action.check()
                if action.clock() > give_up:
                    raise Refused(f"the traces cannot be joined within {JOIN_S:.0f} s; profile fewer steps or ranks")
                yield 0.05
        finally:
            process.kill()
        assert process.stderr is not None
        lines = process.stderr.read().strip().splitlines()
    if process.returncode:
        raise Refused(f"the traces cannot be joined: {clean_line((lines or [f'exit code {process.returncode}'])[-1])}")
