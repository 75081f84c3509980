"""Commands to the observer's main thread, and the endings and signals that carry them out.

Each command is one message and gets one reply: done, or refused with the reason.  An ending
takes seconds and runs in a thread, so that the run's state is published meanwhile.

Of a run on several hosts the head carries out what is for all of them, and a branch passes on what its onlookers
ask; what is for one rank or process is done by the observer of its host.
"""

from __future__ import annotations

import logging
import math
import signal
import socket
import threading
import time
from dataclasses import dataclass
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.control.deadline import lateness
from ddptop.agent.control.events import Events, sentence
from ddptop.agent.end import escalation
from ddptop.agent.observer.end.run_ending import LADDER_S, READ_S, RunEnding, who
from ddptop.agent.observer.hosts import questions
from ddptop.agent.observer.hosts.elsewhere import is_elsewhere
from ddptop.agent.observer.hosts.ends import OtherEnds
from ddptop.agent.observer.hosts.questions import Answer, OtherHosts, Spread
from ddptop.agent.observer.service.requests import TOO_LATE, Requests
from ddptop.agent.run import states
from ddptop.agent.run.identity import boot
from ddptop.agent.run.rundir import Process, Run, RunDir
from ddptop.agent.text import clean_line

_log = logging.getLogger("ddptop.observer")

_LONGEST_GRACE_S: Final = 3600.0
_PATIENCE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Signalled:
    """A signal to all hosts, of which the answers are awaited."""

    sender: bytes
    number: int
    text: str
    """What was done here; empty where nothing was."""
    spread: Spread


@dataclass(frozen=True, slots=True)
class _PassedOn:
    """The kill of a part, or a signal, that another host carries out."""

    sender: bytes
    command: wire.Kill
    host: str
    answer: Answer


class Orders:
    """Carries out the endings and signals that are asked of the observer."""

    def __init__(
        self,
        directory: RunDir,
        requests: Requests,
        events: Events,
        others: OtherEnds | None = None,
        host: str | None = None,
    ) -> None:
        """Prepare.

        Args:
            directory: of the run.
            requests: the commands, and the way back for replies.
            events: takes what is done, and by whom.
            others: the other hosts, and what they tell of the end of the run.
            host: the name of this host.
        """
        self.ranks_killed_by: dict[int, str] = {}
        """By rank, the author of its kill."""
        self._directory = directory
        self._requests = requests
        self._events = events
        self._host = host or socket.gethostname()
        self._others = others or OtherEnds(self._host, OtherHosts())
        self._hosts = self._others.hosts
        self._ending = RunEnding(directory, requests, self._others, self._host, events)
        self._signals: list[_Signalled] = []
        self._passed_on: list[_PassedOn] = []
        self._partial_endings: list[threading.Thread] = []

    @property
    def ending(self) -> bool:
        """Say whether the run is being ended now."""
        return self._ending.is_going_on

    @property
    def killed_by(self) -> str | None:
        """Author of the first kill of the run; None where there was none."""
        return self._ending.killed_by

    @property
    def outcome(self) -> escalation.Outcome | None:
        """What has ended on this host by a kill of the run."""
        return self._ending.outcome

    @property
    def left(self) -> str:
        """What a kill of the run has not ended, as the end of a sentence; empty where that is nothing."""
        total, outcome = self._ending.total, self._ending.outcome
        survivors = () if outcome is None else outcome.survivors
        if total is not None:
            survivors = total.survivors
        told = f"; {len(survivors)} left, see its events" if survivors else ""
        return told + "".join(f"; {each}" for each in escalation.unheard(total.unknown if total is not None else {}))

    @property
    def countdown(self) -> str:
        """While the run is being ended: the processes left, and the time of the next stage."""
        return self._ending.countdown

    @property
    def summary(self) -> str:
        """The outcome of a kill of the run, one line."""
        return self._ending.summary

    def resume_ending(self, run: Run) -> None:
        """Continue the ending during which an earlier observer was killed."""
        self._ending.resume(run)

    def turn(self, run: Run) -> None:
        """Carry out the commands that have arrived."""
        for sender, command in self._requests.received():
            refusal = lateness(command) or self._obey(sender, command, run)
            if refusal is not None:
                self._publish_refusal(command, refusal)
                self._requests.reply(sender, wire.Reply(command.id, False, refusal))
        self._ending.turn(run)
        self._answer_signals()
        self._answer_passed_on()

    def await_parts(self) -> None:
        """Wait for the outcomes of the endings of single ranks and processes."""
        for thread in self._partial_endings:
            # The group ends right after its rank, and the thread may still be counting survivors.
            thread.join(_PATIENCE_S)

    def close(self) -> None:
        """Give the last replies, after this process has released the run: new commands are refused."""
        self.await_parts()
        self._requests.refuse()
        late = []
        for sender, command in self._requests.received():
            if self.outcome is not None and _ends_all(command):
                # The run is ended already.
                late.append((sender, command.id))
            else:
                self._requests.reply(sender, wire.Reply(command.id, False, TOO_LATE))
        self._ending.close(late)

    def _answer_signals(self) -> None:
        for each in [each for each in self._signals if not each.spread.is_waiting]:
            self._signals.remove(each)
            self._requests.reply(each.sender, _signalled(each))

    def forget_ranks(self) -> None:
        """Forget the kills of single ranks: they do not explain the deaths of a new generation."""
        self.ranks_killed_by.clear()

    def _obey(self, sender: bytes, command: wire.Command, run: Run) -> str | None:
        """Begin to carry out a command, whose reply comes later, or return the reason for its refusal."""
        match command:
            case wire.HostEnd() | wire.Conclude() if is_elsewhere(sender):
                refusal = self._others.take(command)
                self._requests.reply(sender, wire.Reply(command.id, refusal is None, refusal or "noted"))
                return None
            case wire.Kill():
                return self._kill(sender, command, run)
        return "that is for a rank to answer"

    def _kill(self, sender: bytes, command: wire.Kill, run: Run) -> str | None:
        if not (math.isfinite(command.grace_s) and 0 <= command.grace_s <= _LONGEST_GRACE_S):
            return f"a grace period is 0 to {_LONGEST_GRACE_S:.0f} seconds"
        if command.pid is not None and command.started is None:
            return f"process {command.pid}: say when it started, so that no other of its number is meant"
        author = who(command)
        whole = command.rank is None and command.pid is None
        if self.killed_by is not None and not whole:
            return "the whole run is being killed already"
        if (host := self._elsewhere(sender, command)) is not None:
            return self._pass_on(sender, command, host)
        if command.signal is not None:
            return self._signal(sender, command, run, author)
        if whole:
            begun = self._ending.ask(sender, command, run)
            if begun and self._ending.is_for_all:
                self._acted("kill", f"{begun} · {author}", author)
            return None
        self._acted("kill", f"{_what(command)} requested · {author}", author, command.rank)
        if command.pid is None and command.rank is not None:
            self.ranks_killed_by.setdefault(command.rank, author)
        thread = threading.Thread(target=self._end_part, args=(sender, command, run), daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if command.rank is not None:
                self.ranks_killed_by.pop(command.rank, None)
            return "this machine has no room for another thread; end something, or kill the whole run"
        self._partial_endings = [each for each in self._partial_endings if each.is_alive()] + [thread]
        return None

    def _elsewhere(self, sender: bytes, command: wire.Kill) -> str | None:
        """Return the host that carries out the kill of a part, or a signal; None where that is this one."""
        if command.pid is not None:
            if command.host in ("", self._host):
                return None
            return questions.HEAD if self._hosts.role == "branch" and not is_elsewhere(sender) else command.host
        if self._hosts.role == "branch":
            # The head knows of it then, and does not take it for a failure.
            passes = not is_elsewhere(sender) and not _ends_all(command)
            return questions.HEAD if passes else None
        if command.rank is None or command.rank in self._directory.members():
            return None
        return next((each.host for each in self._hosts.hosts() if command.rank in each.ranks), None)

    def _pass_on(self, sender: bytes, command: wire.Kill, host: str) -> str | None:
        """Have another host end or signal a part of the run, and pass its answer back."""
        if host != questions.HEAD and not any(each.host == host for each in self._hosts.hosts()):
            return f"host {clean_line(host, 60)}: not of this run, or not heard; `ddptop status` lists its hosts"
        if command.rank is not None and _ends_rank(command):
            self.ranks_killed_by.setdefault(command.rank, who(command))
        answer = self._hosts.ask(host, deadline.limited(command, READ_S), command.grace_s + LADDER_S)
        self._passed_on.append(_PassedOn(sender, command, host, answer))
        return None

    def _answer_passed_on(self) -> None:
        for each in [each for each in self._passed_on if each.answer.done()]:
            self._passed_on.remove(each)
            reply, command = each.answer.result(), each.command
            if reply is None:
                named = "the host of rank 0" if each.host == questions.HEAD else clean_line(each.host, 60)
                text = f"{named} did not answer; whether it was done is not known"
                reply = wire.Reply(command.id, False, text)
            if command.rank is not None and not reply.done:
                self.ranks_killed_by.pop(command.rank, None)
            self._requests.reply(each.sender, msgspec.structs.replace(reply, id=command.id))

    def _publish_refusal(self, command: wire.Command, refusal: str) -> None:
        if isinstance(command, wire.Kill):
            author = who(command)
            text = sentence(_what(command), refusal, author, refused=True)
            self._acted(_action(command), text, author, command.rank)

    def _acted(self, action: str, text: str, who: str, rank: int | None = None) -> None:
        self._events.add(wire.Event(time.time_ns(), text, rank, "warning", action, who))

    def _signal(self, sender: bytes, command: wire.Kill, run: Run, author: str) -> str | None:
        assert command.signal is not None
        if command.signal not in signal.valid_signals():
            return f"there is no signal {command.signal} on this platform"
        spread, text = None, ""
        if command.rank is None and command.pid is None and self._hosts.role == "head":
            every = deadline.limited(command, READ_S)
            spread = Spread(self._hosts, every, READ_S, spared=self._others.ended())
        try:
            targets = escalation.signal_targets(
                run, self._directory.members(), command.signal, command.rank, _process(command)
            )
            text = escalation.deliver(targets, command.signal)
        except escalation.NotOurs as refusal:
            if spread is None:
                return str(refusal)
        else:
            if command.signal in (signal.SIGKILL, signal.SIGTERM):
                for target in targets:
                    if target.role == "rank" and target.rank is not None:
                        self.ranks_killed_by.setdefault(target.rank, author)
            self._acted("signal", f"{self._ending.here(text)} · {author}", author, command.rank)
        if spread is not None:
            self._signals.append(_Signalled(sender, command.id, text and self._ending.here(text), spread))
        else:
            if (
                command.rank is None
                and command.pid is None
                and self._hosts.role == "alone"
                and states.has_other_hosts(run)
            ):
                text += "; nothing on the other hosts, which are not linked"
            self._requests.reply(sender, wire.Reply(command.id, True, text))
        return None

    def _end_part(self, sender: bytes, command: wire.Kill, run: Run) -> None:
        grace_s, process, directory = command.grace_s, _process(command), self._directory
        told = self._ending.tell_stage, self._ending.note
        try:
            if process is not None:
                outcome = escalation.end_process(directory, run, process, grace_s, *told)
                text = outcome.text_of(process)
            else:
                assert command.rank is not None
                outcome = escalation.end_rank(directory, run, command.rank, grace_s, *told)
                text = f"rank {command.rank}: {outcome.text}; {run.leader} {_consequence(run)}"
            reply = wire.Reply(command.id, not outcome.survivors, text)
        except escalation.NotOurs as error:
            if command.rank is not None:
                self.ranks_killed_by.pop(command.rank, None)
            reply = wire.Reply(command.id, False, str(error))
        except Exception as error:  # a wall, as above
            _log.exception("kill of a part")
            reply = wire.Reply(command.id, False, f"the kill failed: {clean_line(repr(error))}")
        if reply.done:
            # The action names the rank already.
            done = reply.text.removeprefix(f"rank {command.rank}: ")
            self._acted("kill", sentence(_what(command), done, who(command)), who(command), command.rank)
        else:
            self._publish_refusal(command, reply.text)
        self._requests.reply(sender, reply)


def _action(command: wire.Kill) -> str:
    return "kill" if command.signal is None else "signal"


def _ends_all(command: wire.Command) -> bool:
    if not isinstance(command, wire.Kill):
        return False
    return command.rank is None and command.pid is None and command.signal is None


def _ends_rank(command: wire.Kill) -> bool:
    return command.pid is None and command.signal in (None, signal.SIGKILL, signal.SIGTERM)


def _signalled(each: _Signalled) -> wire.Reply:
    """Return the reply to a signal to all hosts: done where any process got it."""
    told = [each.text] if each.text else []
    told += [reply.text for _, reply in sorted(each.spread.replies.items())]
    done = bool(each.text) or any(reply.done for reply in each.spread.replies.values())
    return wire.Reply(each.number, done, "; ".join([*told, *escalation.unheard(each.spread.unknown)]))


def _what(command: wire.Kill) -> str:
    action = _action(command)
    if command.pid is not None:
        return f"{action} of process {command.pid}"
    return action if command.rank is None else f"{action} of rank {command.rank}"


def _process(command: wire.Kill) -> Process | None:
    if command.pid is None or command.started is None:
        return None
    return Process(command.pid, command.started, boot())


def _consequence(run: Run) -> str:
    return "restarts all ranks, as often as --max-restarts allows" if run.max_restarts else "ends the others"
