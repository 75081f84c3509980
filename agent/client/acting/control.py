"""What acts on a run: pauses and steps it, has it save, freezes, stops, ends and restarts it.

The keys come here, and the verbs.  Each action is one request to the run's observer (`agent.control.caller.ask`), which
acts, and records who asked and what came of it.  A kill alone does without one where none starts (`unobserved`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.client import runs
from ddptop.agent.client.acting import actor, membership, unobserved
from ddptop.agent.client.acting.kill import Aim, Consent
from ddptop.agent.client.acting.membership import ProcessLine
from ddptop.agent.client.acting.waiting import Waiting
from ddptop.agent.client.sources import takeover
from ddptop.agent.control import caller
from ddptop.agent.control.silence import SILENT_S
from ddptop.agent.end.processes import find
from ddptop.agent.run import hosts, states
from ddptop.agent.run.identity import ELSEWHERE, Process, identify, is_elsewhere
from ddptop.agent.run.rundir import Run, RunDir, RunDirError
from ddptop.agent.wire.frames import ENDED
from ddptop.agent.wire.vocabulary.refusals import Cancelled, Refused

_MOST_LOST: Final = 3
"""Observers of one run that end at a kill, after which it is done without one."""
_CANCELLED: Final = "cancelled; nothing was killed"
ENDING_S: Final = 15.0
"""From the end of the scripts to the end of the run: torchrun looks at its ranks now and then."""

Tell = Callable[[str], None]


class Over(Refused):
    """The run has ended."""

    def __init__(self, text: str, state: str) -> None:
        super().__init__(text)
        self.state = state


class RunControl:
    """The `Control` of one run; it refuses to act on a newer run that has taken its name."""

    def __init__(self, directory: RunDir, run: Run, who: str) -> None:
        """Act on a run for `who`.

        Args:
            directory: where the run is.
            run: its record.
            who: the actor, for the run's event list.
        """
        self._directory = directory
        self._run = run
        self._who = actor.in_run(who, states.has_other_hosts(run, hosts.far_members(directory.path)))
        self.restarted: runs.Run | None = None
        """The run that a restart has started, set by the thread of the restart."""

    @classmethod
    def of(cls, run: runs.Run, who: str) -> RunControl:
        """Act on a run for `who`."""
        return cls(run.directory, run.record(), who)

    @property
    def world(self) -> int:
        """Number of ranks of the run."""
        return self._run.world

    def pause(self, waiting: Waiting | None = None) -> str:
        """Pause all ranks at the same step."""
        return self._act("pause", waiting).text

    def step(self, steps: int, waiting: Waiting | None = None) -> str:
        """Let a paused group do so many steps."""
        return self._act("step", waiting, steps=steps).text

    def checkpoint(self, waiting: Waiting | None = None) -> str:
        """Have all ranks save at the same step."""
        return self._act("checkpoint", waiting).text

    def checksums(self, waiting: Waiting | None = None) -> wire.Parameters:
        """Return the parameters of all ranks at one step, compared; nothing is recorded of the question."""
        reply = self._act("checksum", waiting)
        if reply.parameters is None:
            raise Refused("its observer is of a version that compares none")
        return reply.parameters

    def diagnose(
        self,
        kind: str,
        waiting: Waiting | None = None,
        *,
        steps: int = 1,
        ranks: tuple[int, ...] | None = None,
        culprit: bool = False,
        most_ms: int = wire.CENSUS_MS[0],
    ) -> str:
        """Diagnose some ranks over so many steps; see `Control.diagnose`."""
        return self._act(kind, waiting, steps=steps, ranks=ranks, culprit=culprit, most_ms=most_ms).text

    def stop(self, waiting: Waiting | None = None, *, checkpoint: bool = True) -> str:
        """End all scripts at the same step."""
        done = self._act("stop", waiting, checkpoint=checkpoint).text
        # The scripts have ended; their processes and torchrun take another moment.
        deadline = time.monotonic() + ENDING_S
        while not takeover.has_ended(self._directory) and time.monotonic() < deadline:
            time.sleep(0.05)
        return done

    def join(self, waiting: Waiting | None = None) -> str:
        """Have the agent join all ranks of a job that nobody prepared."""
        return self._act("join", waiting).text

    def leave(self, waiting: Waiting | None = None) -> str:
        """Have it leave them."""
        return self._act("leave", waiting).text

    def resume(self) -> str:
        """Resume all ranks, held or frozen."""
        return self._act("resume").text

    def freeze(self) -> str:
        """Stop all processes where they are."""
        return self._act("freeze").text

    def _act(
        self,
        action: str,
        waiting: Waiting | None = None,
        *,
        steps: int = 1,
        checkpoint: bool = True,
        ranks: tuple[int, ...] | None = None,
        culprit: bool = False,
        most_ms: int = wire.CENSUS_MS[0],
    ) -> wire.Reply:
        here = identify(os.getpid())
        asks = None if here is None else wire.Caller(here.pid, here.started, here.boot, here.namespace)
        request = wire.Act(
            1, action, self._who, steps, checkpoint, ranks=ranks, culprit=culprit, caller=asks, most_ms=most_ms
        )
        waiting = waiting or Waiting()
        try:
            return self._ask(request, lambda frame: waiting.tell(frame.waiting), waiting.is_cancelled)
        finally:
            waiting.tell("")

    def _ask(
        self,
        request: caller.Request,
        take: Callable[[wire.RunFrame], None],
        is_cancelled: Callable[[], bool],
        begin: Callable[[], bool] | None = None,
    ) -> wire.Reply:
        """Have the observer do something, once there is one that reads it; see `caller.ask`.

        Raises:
            Over: the run has ended.
            Unobserved: it has no observer, and none starts.
        """
        self._check_run()
        unread_since, ended = time.monotonic(), 0
        while True:
            with refusing():
                run = takeover.await_observer(self._directory, is_cancelled)
                if is_cancelled():
                    raise Cancelled("cancelled; nothing was done")
                if run.state in ENDED:
                    raise Over(f"run {run.run} is over ({run.state})", run.state)
                try:
                    return caller.ask(self._directory, request, take, is_cancelled, begin)
                except caller.Unread:
                    if is_elsewhere(run.observer):
                        where = f"run {run.run} {ELSEWHERE}, and its observer does not answer here"
                        raise Refused(f"{where}; run this command in there") from None
                    if time.monotonic() - unread_since < SILENT_S:
                        continue
                    takeover.end_silent(run.observer)
                    unread_since, ended = time.monotonic(), ended + 1
                    if begin is not None or ended == _MOST_LOST:
                        # A kill counts them itself.
                        raise caller.Silent("no observer reads the request; nothing was done") from None
                except caller.Silent:
                    takeover.end_silent(run.observer)
                    raise

    def _check_run(self) -> None:
        """Refuse to act on a newer run that has taken the name of this one."""
        with refusing():
            run_id = self._directory.read().run_id
        if run_id != self._run.run_id:
            name = self._directory.name
            raise Refused(f"the {name} shown here is gone: another run has its name; choose it in the list of runs")

    def victims(self, aim: Aim) -> str:
        """Say what `kill` would end, in one line for each thing there is to know."""
        self._check_run()
        with refusing():
            return membership.victims(self._directory, aim)

    def processes(self) -> list[ProcessLine]:
        """Return every live process of the run."""
        self._check_run()
        with refusing():
            return membership.processes(self._directory.read(), self._directory.members())

    def kill(self, grace_s: float, aim: Aim, tell: Tell, consent: Consent | None = None) -> str:
        """End the run, or one rank or process of it, and say what was ended.

        Raises:
            Refused: there is nothing to end, something would not die, or it was cancelled before it began.
        """
        consent, request, lost = consent or Consent(), self._kill(aim, grace_s), 0
        while True:
            try:
                return self._end(request, tell, consent)
            except (caller.Gone, caller.Silent) as reason:
                if aim is not None:
                    raise
                lost += 1
                said = str(reason).partition(";")[0]
                if lost < _MOST_LOST:
                    # Its successor goes on with the kill, and is asked what comes of it.
                    tell(f"{said}; another one goes on")
                    continue
                tell(f"{said}, {lost} times; going on without one")
            except takeover.Unobserved as reason:
                if aim is not None:
                    raise Refused(f"{reason}; `ddptop kill {self._directory.name}` ends all of it") from reason
                tell(f"{reason}; going on without one")
            except Over as over:
                if aim is not None or not (lost or self._has_left_processes()):
                    raise Refused(f"run {self._directory.name} is over already ({over.state})") from over
            with refusing():
                if not consent.begin():
                    raise Refused(_CANCELLED)
                if (done := unobserved.kill(self._directory, self._who, grace_s, tell)) is not None:
                    return done

    def _has_left_processes(self) -> bool:
        with refusing():
            return bool(find(self._directory.read(), self._directory.members()))

    def signal(self, number: int, aim: Aim, consent: Consent | None = None) -> str:
        """Send a signal to the run, a rank or a process, and say who got it.

        Raises:
            Refused: nobody got it, or it was cancelled before that.
        """
        if number == signal.SIGKILL and aim is None:
            # The end of the whole run, which is to be recorded as that.
            return self.kill(0.0, None, lambda line: None, consent)
        request = msgspec.structs.replace(self._kill(aim, 0.0), signal=number)
        return self._end(request, lambda line: None, consent or Consent())

    def _kill(self, aim: Aim, grace_s: float) -> wire.Kill:
        rank = aim if isinstance(aim, int) else None
        if isinstance(aim, Process):
            return wire.Kill(1, grace_s, rank, self._who, aim.pid, aim.started)
        return wire.Kill(1, grace_s, rank, self._who)

    def _end(self, request: wire.Kill, tell: Tell, consent: Consent) -> str:
        """Have the observer end or signal something, and pass on the events meanwhile."""
        events = _NewEvents(tell)
        try:
            return self._ask(request, events.take, lambda: consent.cancelled, consent.begin).text
        except Cancelled as cancelled:
            raise Refused(_CANCELLED) from cancelled

    def resumable(self) -> bool:
        """Say whether the run could be restarted from a checkpoint."""
        # Here, as below: what starts runs need not be imported to look at one.
        from ddptop.agent.client.start import run as start

        return self._run.resumes and start.keeps_checkpoints(self._run.arguments)

    def restart(self, *, resume: bool = False) -> str:
        """Start the ended run again; see `start.restart`.

        Raises:
            Refused: nothing was started.
        """
        from ddptop.agent.client.start import run as start
        from ddptop.agent.client.start.request import RequestError

        lines: list[str] = []
        with refusing():
            self._check_run()
            try:
                started = start.restart(runs.Run(self._directory), resume=resume, who=self._who, tell=lines.append)
            except RequestError as problem:
                raise Refused(str(problem)) from problem
        self.restarted = started
        return "; ".join([f"started again as {started.name}", *lines])


class _NewEvents:
    """Tells what has become an event of the run since somebody has asked for something."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._since = time.time()
        self._told: set[tuple[float, str]] = set()

    def take(self, frame: wire.RunFrame) -> None:
        """Tell the new events of a frame, each once."""
        for event in frame.events:
            known = event.at, event.text
            if event.at >= self._since and event.verdict is None and known not in self._told:
                self._told.add(known)
                self._tell(event.text)


@contextmanager
def refusing() -> Iterator[None]:
    """Refuse what cannot be done because the run's record has been removed."""
    try:
        yield
    except RunDirError as problem:
        raise Refused(str(problem)) from problem
