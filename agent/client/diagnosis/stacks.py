"""Asks the ranks of a run where they stand, through its observer, which looks from outside at those that cannot answer.

It opens a socket of its own, because it runs in a thread and a ZeroMQ socket belongs to one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final

import zmq

from ddptop.agent import wire
from ddptop.agent.client.acting.control import refusing
from ddptop.agent.client.sources import takeover
from ddptop.agent.control.caller import connect, of_rank
from ddptop.agent.record import recording
from ddptop.agent.run.files.masking import Mask
from ddptop.agent.run.identity import may_live
from ddptop.agent.run.rundir import Member, Run, RunDir
from ddptop.agent.run.states import lingers
from ddptop.agent.text import clean_line
from ddptop.agent.wire.frames import ENDED
from ddptop.agent.wire.vocabulary.refusals import Refused, Unheard

PATIENCE_S: Final = 4.0
"""How long a rank is waited for: the observer answers in its place within about two seconds."""
NATIVE_S: Final = 20.0
"""The same where frames of C and C++ are asked for: symbols are read from large files."""
MOST_ASKED: Final = 64
"""Ranks that are asked at a time: an answer may have 100 KiB."""
_SILENT: Final = "no answer"
_POLL_MS: Final = 50
"""How soon it is noticed that the question was cancelled."""


@dataclass(frozen=True, slots=True)
class Stacks:
    """Where some ranks stood at one moment."""

    at: float
    """Seconds since the epoch."""
    inspections: tuple[wire.Inspection, ...] = ()
    missing: Mapping[int, str] | None = None
    """By rank of which nothing could be had, the reason, one line."""
    recorded: bool = False
    """True where they are of the record, taken when the run was found to hang."""
    verdict: wire.Verdict | None = None
    """The verdict of that hang, where they are of the record; None where it is not known."""

    @property
    def unknown(self) -> Mapping[int, str]:
        """The ranks of which nothing could be had."""
        return self.missing or {}

    def of(self, ranks: Set[int]) -> Stacks:
        """Return what is known of some of the ranks alone."""
        found = tuple(each for each in self.inspections if each.rank in ranks)
        return replace(
            self, inspections=found, missing={rank: self.unknown[rank] for rank in ranks & self.unknown.keys()}
        )


class RunInspector:
    """The `Inspector` of one run; it does not ask a newer run that has taken its name."""

    def __init__(self, directory: RunDir, run: Run) -> None:
        self._directory = directory
        self._run = run
        self._mask = Mask(directory.path, run)

    def recorded(self, since: float) -> Stacks | None:
        """Return where the ranks stood in a hang since then; see `Inspector.recorded`."""
        database = self._directory.database
        found = recording.read_inspections(database)
        at = max((each.at_ns for each in found), default=0) / 1e9
        if not found or at < since:
            return None
        hangs = [each for each in recording.read_verdicts(database) if each.is_hang]
        return Stacks(at, tuple(found), recorded=True, verdict=self._mask.shown(hangs[-1]) if hangs else None)

    def ask(
        self,
        ranks: Collection[int] | None = None,
        *,
        native: bool = False,
        heard: Callable[[int, int], None] = lambda heard, asked: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Stacks:
        """Ask some ranks where they stand; see `Inspector.ask`."""
        with refusing():
            run = self._directory.read()
            if run.run_id != self._run.run_id:
                raise Refused(f"the {self._directory.name} shown here is gone: another run has its name")
            if run.state in ENDED:
                how = f"`ddptop report {run.run}` explains its end"
                raise Refused(f"run {run.run} is over ({run.state}): there is no rank to ask; {how}")
            takeover.await_observer(self._directory, cancelled)
            members, here = self._directory.everyone(), self._directory.members()
        wanted = range(run.world) if ranks is None else sorted(set(ranks))
        away = {rank: reason for rank in wanted if (reason := _absence(members.get(rank), far=rank not in here))}
        # A process that has not ended yet may stand in an exit function.
        missing = {rank: away[rank] for rank in away if rank not in here or not may_live(here[rank].process)}
        asked = [rank for rank in wanted if rank not in missing]
        try:
            found = _Asking(self._directory, asked, missing, native=native).carry_out(heard, cancelled) if asked else ()
        except zmq.ZMQError as problem:
            # Without a free descriptor there is no socket.
            raise Refused(f"the ranks cannot be asked: {problem.strerror}") from problem
        return Stacks(time.time(), tuple(found), {rank: away.get(rank, reason) for rank, reason in missing.items()})


def _absence(member: Member | None, *, far: bool) -> str:
    """Return the reason why a rank cannot be asked; empty where it can. Nobody here knows of a `far` process."""
    if member is None:
        return "not reported yet"
    if member.ended is not None:
        if waits := lingers(member.ended, alive=not far and may_live(member.process)):
            return f"its script has ended{waits}"
        code = member.ended.exit_code
        return "ended" + ("" if code is None else f", exit code {code}")
    return "" if far or may_live(member.process) else "process gone"


class _Asking:
    """One question to many ranks, some of them at a time."""

    def __init__(self, directory: RunDir, ranks: Collection[int], missing: dict[int, str], *, native: bool) -> None:
        """Prepare; ranks of which nothing comes are noted in `missing`."""
        self._directory = directory
        self._ranks = ranks
        self._native = native
        self._patience_s = NATIVE_S if native else PATIENCE_S
        self._missing = missing
        self._waiting: dict[int, float] = {}
        """By rank that was asked, when it is given up."""
        self._found: dict[int, wire.Inspection] = {}

    def carry_out(
        self, heard: Callable[[int, int], None], cancelled: Callable[[], bool]
    ) -> Collection[wire.Inspection]:
        """Ask until each has answered or had its time, and return what is known."""
        left = deque(self._ranks)
        heard(0, len(self._ranks))
        with zmq.Context() as context:
            socket = connect(context, zmq.DEALER, self._directory.address("observer", "cmd"))
            with socket:
                while (left or self._waiting) and not cancelled():
                    while left and len(self._waiting) < MOST_ASKED:
                        self._send(socket, left.popleft())
                    if socket.poll(_POLL_MS) and self._take(*of_rank(socket.recv_multipart())):
                        heard(len(self._ranks) - len(left) - len(self._waiting), len(self._ranks))
                    self._give_up(time.monotonic())
        return self._found.values()

    def _send(self, socket: zmq.Socket[bytes], rank: int) -> None:
        socket.send_multipart([b"%d" % rank, wire.encode(wire.Inspect(rank, native=self._native))])
        self._waiting[rank] = time.monotonic() + self._patience_s

    def _take(self, rank: int, answer: wire.Answer | None) -> bool:
        """Take in an answer; say whether it is one that was waited for."""
        if rank not in self._waiting or not isinstance(answer, wire.Reply) or answer.id != rank:
            return False
        del self._waiting[rank]
        if answer.inspection is not None and answer.inspection.rank == rank:
            self._found[rank] = answer.inspection
        else:
            # The observer answers in the place of a rank that does not.
            is_silent = answer.refusal == Unheard.kind or not answer.text
            self._missing[rank] = _SILENT if is_silent else clean_line(answer.text)
        return True

    def _give_up(self, now: float) -> None:
        for rank in [rank for rank, until in self._waiting.items() if now > until]:
            del self._waiting[rank]
            self._missing[rank] = f"{_SILENT} within {self._patience_s:.0f} s"
