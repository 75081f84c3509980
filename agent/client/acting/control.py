"""What acts on a run: pauses and steps it, has it save, stops, freezes, ends and restarts it.

The keys come here, and the verbs.  `pause`, `step`, `resume`, `checkpoint`, `stop`, `checksum` and `profile` are one
request each to the observer (`agent.control.caller.act`), which acts, and records who asked and what came of it.  What
ends a run goes through `ending`, which does without an observer where there is none; a freeze needs none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ddptop.agent import wire
from ddptop.agent.client import runs, takeover
from ddptop.agent.client.acting import actor
from ddptop.agent.client.acting.ending import Ending
from ddptop.agent.client.acting.kill import Aim, Consent
from ddptop.agent.client.acting.membership import ProcessLine
from ddptop.agent.client.acting.waiting import Waiting
from ddptop.agent.control import caller, journal
from ddptop.agent.end import freezer
from ddptop.agent.run import hosts, states
from ddptop.agent.run.identity import identify, is_stopped
from ddptop.agent.run.rundir import Run, RunDir, RunDirError
from ddptop.agent.wire.frames import ENDED
from ddptop.agent.wire.refusals import Refused

OBSERVER_S: Final = 10.0
"""How long another observer may take to start, where the one before is gone."""
ENDING_S: Final = 15.0
"""From the end of the scripts to the end of the run: torchrun looks at its ranks now and then."""
_TIMEOUT_S: Final = 1.0
"""Seconds in which the ranks may say the timeout of their collectives, which the note of a freeze has."""


class RunControl:
    """The `Control` of one run; it refuses to act on a newer run that has taken its name."""

    def __init__(
        self,
        directory: RunDir,
        run: Run,
        who: str,
    ) -> None:
        """Act on a run for `who`.

        Args:
            directory: where the run is.
            run: its record.
            who: the actor, for the run's event list.
        """
        self._directory = directory
        self._run = run
        self._who = who = actor.in_run(who, states.has_other_hosts(run))
        self.countdown = ""
        """The ranks left of an ending that goes on here, without an observer; set by the thread that ends the run."""
        self.restarted: RunDir | None = None
        """The run that a restart has started, set by the thread of the restart."""
        self._ending = Ending(directory, who)

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

    def stop(self, waiting: Waiting | None = None, *, checkpoint: bool) -> str:
        """End all scripts at the same step."""
        done = self._act("stop", waiting, checkpoint=checkpoint).text
        # The scripts have ended; their processes and torchrun take another moment.
        deadline = time.monotonic() + ENDING_S
        while takeover.meet(self._directory).state not in ENDED and time.monotonic() < deadline:
            time.sleep(0.05)
        return done

    def resume(self) -> str:
        """Resume all ranks, held or frozen; see `freezer.thaw`."""
        if freezer.has_stopped(self._directory):
            return self._noted("resume", lambda: freezer.thaw(self._directory))
        return self._act("resume").text

    def freeze(self) -> str:
        """Stop all processes where they are; see `freezer.freeze`."""
        return self._noted("freeze", self._freeze)

    def _freeze(self) -> str:
        run = self._directory.read()
        if states.has_other_hosts(run, hosts.far_members(self._directory.path)):
            # The ranks on the others would wait for these in a collective, and be taken for a hang.
            raise Refused(
                f"{run.run} runs on several hosts, and a freeze stops the processes of one only: nothing is frozen; "
                f"`ddptop pause {run.run}` holds all hosts at the same step"
            )
        # It needs no observer: without one the timeouts of the collectives are not known.
        replies = caller.query(self._directory, range(run.world), _TIMEOUT_S)
        known = [reply.timeout_s for reply in replies.values() if reply.timeout_s is not None]
        return freezer.freeze(self._directory, self._who, min(known, default=None))

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
        self._check_run()
        with refusing():
            await_observer(self._directory)
            if (state := self._directory.read().state) in ENDED:
                raise Refused(f"run {self._directory.name} is over ({state})")
            here = identify(os.getpid())
            asks = None if here is None else wire.Caller(here.pid, here.started, here.boot, here.namespace)
            command = wire.Act(
                1, action, self._who, steps, checkpoint, ranks=ranks, culprit=culprit, caller=asks, most_ms=most_ms
            )
            waiting = waiting or Waiting()
            return caller.act(self._directory, command, waiting.tell, waiting.is_cancelled)

    def _noted(self, action: str, work: Callable[[], str]) -> str:
        """Act without the observer, and record with the run who did it and what came of it."""
        self._check_run()
        try:
            with refusing():
                outcome = work()
        except Refused as refusal:
            self._note(action, str(refusal), "warning", refused=True)
            raise
        except KeyboardInterrupt as interrupt:
            # It has the name of the signal where that is another one.
            self._note(action, f"interrupted ({str(interrupt) or 'SIGINT'}); it may be half done", "info")
            raise
        self._note(action, outcome, "info")
        return outcome

    def _note(self, action: str, outcome: str, level: str, *, refused: bool = False) -> None:
        text = journal.sentence(action, outcome, self._who, refused=refused)
        journal.note(self._directory, wire.Event(time.time_ns(), text, None, level, action, self._who))

    def _check_run(self) -> None:
        """Refuse to act on a newer run that has taken the name of this one."""
        with refusing():
            run_id = self._directory.read().run_id
        if run_id != self._run.run_id:
            name = self._directory.name
            raise Refused(f"the {name} shown here is gone: another run has its name; choose it in the list of runs")

    def victims(self, aim: Aim) -> str:
        """Say what `kill` would end; see `Ending.victims`."""
        self._check_run()
        with refusing():
            return self._ending.victims(aim)

    def processes(self) -> list[ProcessLine]:
        """Return every live process of the run."""
        self._check_run()
        with refusing():
            return self._ending.processes()

    def kill(self, grace_s: float, aim: Aim, progress: Callable[[str], None], consent: Consent | None = None) -> str:
        """End the run, or one rank or process of it; see `Ending.kill`."""
        with refusing():
            self._check_run()
            return self._ending.kill(grace_s, aim, progress, self._count_down, consent)

    def _count_down(self, line: str) -> None:
        self.countdown = line

    def signal(self, number: int, aim: Aim, consent: Consent | None = None) -> str:
        """Send a signal; see `Ending.signal`."""
        with refusing():
            self._check_run()
            return self._ending.signal(number, aim, consent)

    def resumable(self) -> bool:
        """Say whether the run could be restarted from a checkpoint."""
        # Here, as below: what starts runs need not be imported to look at one.
        from ddptop.agent.client.start import run as start

        return self._run.resumes and start.keeps_checkpoints(self._run.arguments)

    def restart(self, *, resume: bool) -> str:
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
        self.restarted = started.directory
        return "; ".join([f"started again as {started.name}", *lines])


def await_observer(directory: RunDir, cancelled: Callable[[], bool] = lambda: False) -> None:
    """See to it that a run has an observer, which passes commands on to the ranks, unless that is cancelled.

    Raises:
        Refused: there is none, and none starts; or it is stopped.
    """
    give_up = time.monotonic() + OBSERVER_S
    while not (found := takeover.meet(directory)).supervised:
        if found.state in ENDED or cancelled():
            return
        if time.monotonic() > give_up:
            log = directory.observer_log
            raise Refused(f"its observer is gone, and another one does not start: {log} may tell why")
        time.sleep(0.05)
    if found.run.observer is not None and is_stopped(found.run.observer):
        pid = found.run.observer.pid
        raise Refused(f"its observer is stopped (SIGSTOP), and nobody else reaches the ranks: kill -CONT {pid}")


@contextmanager
def refusing() -> Iterator[None]:
    """Refuse what cannot be done because the run's record has been removed."""
    try:
        yield
    except RunDirError as problem:
        raise Refused(str(problem)) from problem
