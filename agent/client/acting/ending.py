"""End a run, a rank or a process of it, or send it a signal: by its observer, or here where none lives.

Key and shell verb both end here.  Knows no screen.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec
import zmq

from ddptop.agent import wire
from ddptop.agent.client import takeover
from ddptop.agent.client.acting import actor, membership
from ddptop.agent.client.acting.kill import Aim, Consent
from ddptop.agent.client.acting.membership import ProcessLine
from ddptop.agent.client.runs import Run
from ddptop.agent.control import deadline, journal
from ddptop.agent.control.caller import connect, readable
from ddptop.agent.end import processes, survey
from ddptop.agent.end.escalation import NotOurs, Survived
from ddptop.agent.run import hosts, states
from ddptop.agent.run.files.private import Claim
from ddptop.agent.run.identity import is_stopped, may_live
from ddptop.agent.run.rundir import Process, RunDir, RunDirError
from ddptop.agent.text import plural
from ddptop.agent.wire.refusals import Refused

_TAKEOVER_S: Final = 5.0
"""How long a command waits for an observer that is just taking over."""
_ANSWER_S: Final = 2.0
"""How long an observer may take to read a command; later it refuses it, and everything is done here."""
_MARGIN_S: Final = 0.5
"""How long after that its answer may be under way."""
_REPLY_S: Final = 30.0
"""Beyond the grace period: SIGKILL, and processes that are slow to die."""
_LOOK_S: Final = 0.1
_POLL_MS: Final = 100
_MOST_HOSTS: Final = 4
"""Other hosts that are named one by one."""
_ASKED: Final = 1
_READ: Final = 2
"""Number of a question that follows a command: its answer says that the command was read."""


def _named(directory: RunDir, who: str) -> str:
    try:
        return actor.in_run(who, states.has_other_hosts(directory.read(), hosts.far_members(directory.path)))
    except (RunDirError, OSError):
        return who


def kill_unrecorded(run: Run, grace_s: float, progress: Callable[[str], None]) -> str | None:
    """End a run whose folder or record was lost while it lived; return the outcome, None where there is none.

    Raises:
        RunDirError: some process did not end.
    """
    with contextlib.suppress(RunDirError):
        run.record()
        return None
    try:
        return survey.end_unrecorded(run.directory, grace_s, progress)
    except Survived as left:
        raise RunDirError(str(left)) from left


class Ending:
    """What can be ended of one run, and how."""

    def __init__(self, directory: RunDir, who: str) -> None:
        self._directory = directory
        self._who = _named(directory, who)

    def victims(self, aim: Aim) -> str:
        """Say what `kill` would end, in one line for each thing there is to know."""
        run, members = self._directory.read(), self._directory.members()
        if isinstance(aim, Process):
            return f"process {aim.pid} alone; what depends on it may fail"
        if aim is not None:
            effect = "the run ends"
            if run.world > 1:
                effect = f"the others fail at their next collective, and {run.leader} ends them"
            if run.max_restarts:
                effect += f", then restarts all ranks (at most {run.max_restarts} times)"
            pid = f" (pid {members[aim].process.pid})" if aim in members else ""
            return f"rank {aim}{pid} and its helpers: {effect}"
        counts = Counter(target.role for target in processes.find(run, members))
        leader = f"{run.leader} {run.torchrun.pid}, " if run.torchrun is not None and counts["torchrun"] else ""
        helpers = f", {plural(counts['helper'], 'helper')}" if counts["helper"] else ""
        found = f"{leader}{plural(counts['rank'], 'rank')}{helpers}"
        far = Counter(member.host for rank, member in self._directory.everyone().items() if rank not in members)
        if not far:
            return found
        here = next((member.host for member in members.values()), "this host")
        there = [f"{plural(number, 'rank')} on {host}" for host, number in far.items()]
        if len(there) > _MOST_HOSTS:
            there = [f"{plural(far.total(), 'rank')} on {plural(len(far), 'other host')}"]
        return f"{found} on {here}; {', '.join(there)}"

    def processes(self) -> list[ProcessLine]:
        """Return every live process of the run."""
        return membership.processes(self._directory.read(), self._directory.members())

    def kill(
        self,
        grace_s: float,
        aim: Aim,
        progress: Callable[[str], None],
        countdown: Callable[[str], None] = lambda line: None,
        consent: Consent | None = None,
    ) -> str:
        """End the run, or one rank or process of it, and say what was ended.

        Raises:
            Refused: there is nothing to end, something would not die, or it was cancelled before it began.
        """
        return self._carry_out(self._command(aim, grace_s), progress, countdown, consent)

    def signal(self, number: int, aim: Aim, consent: Consent | None = None) -> str:
        """Send a signal to the run, a rank or a process, and say who got it.

        Raises:
            Refused: nobody got it, or it was cancelled before that.
        """
        if number == signal.SIGKILL and aim is None:
            # The end of the whole run, which is to be recorded as that.
            return self.kill(0.0, None, lambda line: None, consent=consent)
        return self._carry_out(msgspec.structs.replace(self._command(aim, 0.0), signal=number), consent=consent)

    def _command(self, aim: Aim, grace_s: float) -> wire.Kill:
        process = aim if isinstance(aim, Process) else None
        return wire.Kill(
            id=_ASKED,
            grace_s=grace_s,
            rank=aim if isinstance(aim, int) else None,
            who=self._who,
            pid=None if process is None else process.pid,
            started=None if process is None else process.started,
        )

    def _carry_out(
        self,
        command: wire.Kill,
        progress: Callable[[str], None] = lambda line: None,
        countdown: Callable[[str], None] = lambda line: None,
        consent: Consent | None = None,
    ) -> str:
        """Have the observer do it; where none lives, or it is stopped or silent, do it here."""
        consent = consent or Consent()
        if self._is_supervised(consent):
            reply = self._ask_observer(command, progress, consent)
            if reply is not None and not reply.done:
                raise Refused(reply.text)
            if reply is not None:
                return reply.text
        try:
            if not consent.begin():
                raise NotOurs("cancelled; nothing was killed")
            done = survey.kill(self._directory, command, progress, countdown)
        except NotOurs as refusal:
            self._note(command, str(refusal), "warning", refused=True)
            raise Refused(str(refusal)) from refusal
        except Survived as left:
            self._note(command, str(left), "error")
            raise Refused(str(left)) from left
        # What an observer does it tells itself.
        self._note(command, done, "warning")
        return done

    def _note(self, command: wire.Kill, outcome: str, level: str, *, refused: bool = False) -> None:
        action = "kill" if command.signal is None else "signal"
        text = journal.sentence(action, outcome, self._who, refused=refused)
        journal.note(self._directory, wire.Event(time.time_ns(), text, command.rank, level, action, self._who))

    def _is_supervised(self, consent: Consent) -> bool:
        """Say whether there is an observer to ask; wait for one that is just taking over.

        Raises:
            Refused: the run is over.
        """
        give_up = time.monotonic() + _TAKEOVER_S
        while time.monotonic() < give_up and not consent.cancelled:
            state = survey.look(self._directory)
            if state.ended:
                if processes.find(self._directory.read(), self._directory.members()):
                    # Something has outlived the end that is recorded.
                    return False
                raise Refused(f"run {self._directory.name} is over already ({takeover.meet(self._directory).state})")
            if state.supervised:
                return True
            # While somebody holds the claim, another observer is about to take over.
            try:
                claim = Claim.acquire(self._directory.path)
            except OSError:
                # No room for its file, and so nobody who holds it.
                return False
            if claim is not None:
                claim.release()
                return False
            time.sleep(_LOOK_S)
        return False

    def _ask_observer(self, command: wire.Kill, progress: Callable[[str], None], consent: Consent) -> wire.Reply | None:
        """Send a command, pass on what the observer tells meanwhile, and return its answer.

        None: it does nothing about it, now or later, or not any more.
        """
        observer = self._directory.read().observer
        if consent.cancelled:
            return None
        if is_stopped(observer):
            progress("the observer is stopped (SIGSTOP); going on without it")
            return None
        with zmq.Context() as context:
            events = connect(context, zmq.SUB, self._directory.address("observer", "pub"))
            events.subscribe(wire.TOPIC_EVENT)
            asking = connect(context, zmq.DEALER, self._directory.address("observer", "cmd"))
            try:
                asking.send(wire.encode(deadline.limited(command, _ANSWER_S)))
                asking.send(wire.encode(wire.Query(_READ)))
                poller = zmq.Poller()
                poller.register(events, zmq.POLLIN)
                poller.register(asking, zmq.POLLIN)
                has_read = is_gone = False
                give_up = time.monotonic() + _ANSWER_S + _MARGIN_S
                while time.monotonic() < give_up:
                    ready = dict(poller.poll(_POLL_MS))
                    if events in ready:
                        payload = events.recv_multipart()[-1]
                        with contextlib.suppress(wire.Unreadable):
                            message = wire.read_telemetry(payload)
                            if isinstance(message, wire.Event):
                                progress(message.text)
                    if asking in ready:
                        answer = readable(asking.recv())
                        if isinstance(answer, wire.Reply) and answer.id == _ASKED:
                            return answer
                        if isinstance(answer, wire.Reply) and not has_read:
                            has_read = True
                            give_up = time.monotonic() + command.grace_s + _REPLY_S
                            if not consent.overrule():
                                progress("too late to cancel: the observer has begun")
                    # Before it has read the command, only the deadline makes sure that it will not do it later.
                    if has_read and is_stopped(observer):
                        progress("the observer was stopped (SIGSTOP) meanwhile; going on without it")
                        return None
                    if not ready and is_gone:
                        return None
                    # What it has said at last may still be on its way, so look once more.
                    is_gone = not may_live(observer)
                progress("the observer does not answer; going on without it")
                return None
            finally:
                events.close(linger=0)
                asking.close(linger=0)
