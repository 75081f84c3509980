"""Pause, step, resume, checkpoint, stop and checksum of the whole group: one request, one reply.

The observer of the head acts, one action at a time, in a thread of its own; a branch passes requests on to it.  What an
action waits for is in the run's state for all to see; what came of it is an event.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.control import journal
from ddptop.agent.control.events import Events
from ddptop.agent.end import freezer
from ddptop.agent.observer.actions.checksums import Checksums, compared
from ddptop.agent.observer.actions.controller import LEASE_S, Controller
from ddptop.agent.observer.actions.diagnosis import Diagnosed
from ddptop.agent.observer.actions.memory import memory
from ddptop.agent.observer.actions.probe import probe
from ddptop.agent.observer.actions.profile import UNASKED, OnVerdict, profile
from ddptop.agent.observer.actions.ranks import Ask, LiveRanks
from ddptop.agent.observer.actions.wait import GOES_ON, Wait
from ddptop.agent.observer.hosts.elsewhere import is_elsewhere
from ddptop.agent.observer.hosts.questions import HEAD, Answer, OtherHosts
from ddptop.agent.observer.model.situation import Circumstances
from ddptop.agent.observer.service.requests import TOO_LATE, Requests
from ddptop.agent.run.identity import may_live
from ddptop.agent.run.rundir import Process, RunDir, RunDirError
from ddptop.agent.run.switches import thresholds
from ddptop.agent.text import clean_line
from ddptop.agent.wire.refusals import Awaiting, Busy, Cancelled, Hung, Refused, Unheard

_log = logging.getLogger("ddptop.observer")

ACTIONS: Final = ("pause", "step", "resume", "checkpoint", "stop", "checksum", "profile", "probe", "memory")
_OF_STEPS: Final = ("step", "profile", "memory")
_GIVE_WAY: Final = ("profile", "probe", "memory")
"""Actions that a stop cancels: a scheduler that ends the run leaves no time for a diagnosis."""
_SETTLE: Final = "settle"
_FOLLOW_UP: Final = "follow up"
_OWN: Final = (_SETTLE, _FOLLOW_UP)
"""What this observer does by itself; nobody asks for it."""
_WHOLE: Final = 7 * 86400.0
"""Seconds that the head may take for an action: as long as its ranks train."""
_SETTLE_S: Final = LEASE_S + 2.0
"""Seconds for which some ranks have to be held and others not, with no action under way, before that is put right."""
_END_S: Final = 2.0
"""Seconds that an action has to end with the observer."""
_LEFT: Final = "its observer left meanwhile; `ddptop status` tells whether it was done"
_NOTHING: Final = "no action waits for ranks"
_UNKNOWN: Final = "the host of rank 0 does not answer; `ddptop status` tells whether it was done"


_Outcome = str | wire.Parameters | Diagnosed
"""A line, the answer to a question, or what is kept with the run."""


class _Action:
    """An action in its thread."""

    def __init__(self, command: wire.Act) -> None:
        self.command = command
        self.author = _author(command)
        # Of a diagnosis a number is the one that it has in the lists of what is kept.
        self.name = f"step {command.steps}" if command.action == "step" else command.action
        self.began = time.monotonic()
        self.requesters: list[tuple[bytes, int]] = []
        """Whoever has asked for it, each with the number of the request."""
        self.callers: list[Process | None] = []
        """Their processes; None: one that is not known, or on another host."""
        self.wait = Wait()
        self.thread: threading.Thread | None = None
        self.outcome: _Outcome | Refused | None = None
        """None until it has ended."""

    @property
    def said(self) -> str:
        return f"{self.name} by {self.author}"

    @property
    def can_be_cancelled(self) -> bool:
        return self.outcome is None and not self.wait.is_decided

    @property
    def is_forsaken(self) -> bool:
        """Say whether it is a diagnosis, and nobody who has asked for it lives."""
        return (
            self.command.action in _GIVE_WAY
            and bool(self.callers)
            and not any(each is None or may_live(each) for each in self.callers)
        )

    def is_the_same(self, other: _Action) -> bool:
        """Say whether one outcome serves both; two steps are two, whoever asks."""
        if self.command.action in _OF_STEPS or other.wait.is_cancelled:
            return False
        return (self.said, self.command.checkpoint) == (other.said, other.command.checkpoint)


class Actions:
    """The action that is under way; for use from the observer's main thread."""

    def __init__(
        self,
        directory: RunDir,
        ask: Ask,
        requests: Requests,
        events: Events,
        hosts: OtherHosts,
    ) -> None:
        """Prepare.

        Args:
            directory: of the run.
            ask: sends each rank its command, on any thread.
            requests: the way back for replies.
            events: takes what came of each action.
            hosts: the observers of other hosts.
        """
        self._directory = directory
        self._ask = ask
        self._requests = requests
        self._events = events
        self._hosts = hosts
        self._present: _Action | None = None
        """The action that is under way, or has ended and is not answered yet."""
        self._next: _Action | None = None
        """A resume or a stop that has cancelled it, or what was asked for while this observer acted by itself."""
        self._passed_on: list[tuple[bytes, int, Answer]] = []
        """What a branch has passed on to the head: whoever has asked, the number of the request, and the answer."""
        self._circumstances = Circumstances()
        self._on_verdict = OnVerdict(thresholds.of_user().profile)
        self._uneven_since: float | None = None
        self._is_settled = False
        """Ranks are as uneven as they are meant to be: one that has ended, or is on its way to a step."""

    @property
    def under_way(self) -> str:
        """The action that is under way and its author, for `Supervision.action`; empty where there is none."""
        return "" if self._shown is None else self._shown.said

    @property
    def waiting(self) -> str:
        """What that action waits for, for `Supervision.waiting`."""
        return "" if self._shown is None else self._shown.wait.line

    @property
    def _shown(self) -> _Action | None:
        """The action that somebody has asked for; of what this observer puts right an event says what came of it."""
        present = self._present
        return None if present is None or present.command.action in _OWN else present

    def obey(self, sender: bytes, command: wire.Act | wire.Cancel) -> None:
        """Begin what was asked for; the reply comes once it is done, or refused."""
        # What has ended since the last turn is not under way.
        self._take_outcome()
        if self._hosts.role == "branch" and not is_elsewhere(sender):
            self._pass_on(sender, command)
        elif isinstance(command, wire.Cancel):
            cancels = self._cancel_for(sender, _author(command))
            self._requests.reply(sender, wire.Reply(command.id, cancels, "" if cancels else _NOTHING))
        else:
            self._begin(sender, command)

    def _pass_on(self, sender: bytes, command: wire.Act | wire.Cancel) -> None:
        # With its sender: at the head, somebody else here is somebody else.
        answer = self._hosts.ask(HEAD, command, _WHOLE, sender)
        self._passed_on.append((sender, command.id, answer))

    def _answer_passed_on(self) -> None:
        for each in [each for each in self._passed_on if each[2].done()]:
            self._passed_on.remove(each)
            sender, number, answer = each
            reply = answer.result() or wire.Reply(number, False, _UNKNOWN, refusal=Unheard.kind)
            self._requests.reply(sender, msgspec.structs.replace(reply, id=number))

    def _begin(self, sender: bytes, command: wire.Act) -> None:
        before, action = self._present, _Action(command)
        action.requesters.append((sender, command.id))
        caller = None if is_elsewhere(sender) else command.caller
        action.callers.append(None if caller is None else Process(*msgspec.structs.astuple(caller)))
        if command.action not in ACTIONS:
            self._answer(action, _no_action(command))
        elif before is None:
            self._start(action)
        elif action.is_the_same(before):
            # The ranks of a run that a scheduler ends ask for the same.
            before.requesters += action.requesters
            before.callers += action.callers
        elif self._next is None and (
            not before.requesters or (command.action == "stop" and before.command.action in _GIVE_WAY)
        ):
            # What this observer does by itself makes way; what it puts right takes a moment.
            before.wait.is_cancelled = before.command.action != _SETTLE
            self._next = action
        elif command.action == "resume" and before.can_be_cancelled and self._next is None:
            before.wait.is_cancelled = True
            self._next = action
        else:
            doing = f"{before.said} is under way for {time.monotonic() - before.began:.0f} s"
            line = before.wait.line.rpartition(": ")[2]
            if not before.can_be_cancelled:
                self._answer(action, Refused(f"{doing}, and can no longer be cancelled"))
            else:
                waits = line and not before.wait.is_working
                said = f"{doing}, {line}" if line else doing
                self._answer(action, Awaiting(said) if waits else Busy(said))

    def _start(self, action: _Action) -> None:
        action.thread = threading.Thread(target=self._work, args=(action,), name="action", daemon=True)
        try:
            action.thread.start()
        except RuntimeError:
            text = "this machine has no room for another thread; end something, and try again"
            self._answer(action, Refused(text))
        else:
            self._present = action

    def _work(self, action: _Action) -> None:
        try:
            action.outcome = self._carry_out(action)
        except Refused as refusal:
            action.outcome = refusal
        except Exception as error:  # a wall: whoever asks gets a reply
            _log.exception("an action")
            action.outcome = Refused(f"the observer could not: {clean_line(repr(error))}")
        self._requests.arrived.set()

    def _carry_out(self, action: _Action) -> _Outcome:
        if freezer.has_stopped(self._directory):
            raise Refused("its processes are frozen; resume it first")
        try:
            return self._act(action, LiveRanks(self._directory, self._ask))
        except Cancelled:
            raise
        except Refused as refusal:
            # Whoever is stopped answers nobody: that is the reason, whatever the ranks did not do.
            if (freeze := freezer.frozen(self._directory)) is not None:
                raise Refused(f"frozen meanwhile by {freeze.who}") from refusal
            if isinstance(refusal, Unheard) and action.wait.hang:
                raise Hung(action.wait.hang) from refusal
            raise
        except RunDirError as problem:
            raise Refused(str(problem)) from problem
        except OSError as problem:
            raise Refused(f"{problem.filename}: {problem.strerror}") from problem

    def _act(self, action: _Action, ranks: LiveRanks) -> _Outcome:
        command, controller = action.command, Controller(ranks, action.author, action.wait)
        match command.action:
            case "profile":
                return profile(self._directory, ranks, command, self._circumstances.blamed, action.wait)
            case "probe":
                return probe(self._directory, ranks, controller, action.wait)
            case "memory":
                return memory(self._directory, ranks, command, self._circumstances.growing, action.wait)
            case "checksum":
                return compared(Checksums().gather(ranks, action.wait)[1])
            case "pause":
                return controller.pause()
            case "step":
                return controller.advance(command.steps)
            case "resume":
                return controller.resume()
            case "checkpoint":
                return controller.checkpoint()
            case "stop":
                return controller.stop(checkpoint=command.checkpoint)
            case _ if command.action == _FOLLOW_UP:
                return controller.follow_up(saves=action.name in ("checkpoint", "stop"))
            case _:
                return controller.settle(ranks.stopped_by)

    def _answer(self, action: _Action, outcome: _Outcome | Refused) -> None:
        """Record what came of an action, and answer whoever has asked for it."""
        refused, parameters = isinstance(outcome, Refused), None
        if isinstance(outcome, wire.Parameters):
            # The observer judges checksums by itself: a question is no action.
            parameters, text = outcome, ""
        else:
            text = str(outcome.folder if isinstance(outcome, Diagnosed) else outcome)
            self._record(action, outcome)
        kind = outcome.kind if isinstance(outcome, Refused) else ""
        for requester, number in action.requesters:
            self._requests.reply(requester, wire.Reply(number, not refused, text, refusal=kind, parameters=parameters))

    def _record(self, action: _Action, outcome: str | Diagnosed | Refused) -> None:
        if action.command.action == "checksum":
            return
        self._is_settled = action.command.action == _SETTLE and outcome == ""
        if action.command.action == _SETTLE:
            # Where a rank does not answer, it is tried again.
            if outcome and isinstance(outcome, str):
                self._events.add(wire.Event(time.time_ns(), outcome, None, "warning"))
            return
        name, said = action.name, str(outcome)
        if action.command.action == _FOLLOW_UP:
            # Where the ranks do not answer, or somebody asks for something else, nobody knows.
            said = _LEFT if isinstance(outcome, Refused) else f"its observer left meanwhile; {said}"
            self._note_left(name, said, action.author)
            return
        if isinstance(outcome, Cancelled):
            said = "cancelled"
        elif isinstance(outcome, Diagnosed):
            name, said = f"{action.command.action} {outcome.folder.name}", outcome.finding
        refused = isinstance(outcome, Refused) and not isinstance(outcome, Cancelled)
        text = journal.sentence(name, said, action.author, refused=refused)
        level = "warning" if refused else "info"
        self._events.add(wire.Event(time.time_ns(), text, None, level, action.name, action.author))

    def _cancel_for(self, sender: bytes, author: str) -> bool:
        """Cancel what somebody has asked for; the wish may come late, when it is another one's that is under way."""

        def is_theirs(action: _Action) -> bool:
            # All who ask at another host have one sender.
            return action.author == author and any(requester == sender for requester, _ in action.requesters)

        if self._next is not None and is_theirs(self._next):
            following, self._next = self._next, None
            self._answer(following, Cancelled(GOES_ON))
            return True
        return self._present is not None and is_theirs(self._present) and self._cancel()

    def _cancel(self) -> bool:
        """Cancel the action that waits; return False where there is none, or it saves already."""
        if self._present is None or not self._present.can_be_cancelled:
            return False
        self._present.wait.is_cancelled = True
        return True

    def turn(self, circumstances: Circumstances, *, settles: bool = True) -> None:
        """Answer what has ended, and put right what was left half done; to be called from time to time.

        Args:
            circumstances: of an action that begins now.
            settles: what was left half done is to be put right.
        """
        self._answer_passed_on()
        self._circumstances, hang = circumstances, circumstances.hang
        self._take_outcome()
        now, uneven = time.monotonic(), circumstances.is_uneven and settles
        is_free = self._present is None and self._hosts.role != "branch" and not circumstances.is_held
        if (unasked := self._on_verdict.due(circumstances.blamed, now, is_free=is_free)) is not None:
            self._start(_Action(unasked))
        if self._present is not None:
            if self._present.is_forsaken:
                self._cancel()
            hangs = hang is not None and hang.kind == "hang" and hang.until_at_ns is None
            self._present.wait.hang = hang.ageless if hang is not None and hangs else ""
        if not uneven:
            self._is_settled = False
        if not uneven or self._is_settled or self._present is not None or self._hosts.role == "branch":
            self._uneven_since = None
        elif self._uneven_since is None:
            self._uneven_since = now
        elif now - self._uneven_since >= _SETTLE_S:
            self._uneven_since = None
            self._start(_Action(wire.Act(0, _SETTLE, UNASKED)))

    def _take_outcome(self) -> None:
        ended, following = self._present, self._next
        if ended is None or ended.outcome is None:
            return
        self._present = self._next = None
        if ended.command.who == UNASKED and ended.command.action == "profile" and isinstance(ended.outcome, Refused):
            self._on_verdict.not_made()
        self._answer(ended, ended.outcome)
        if following is None:
            return
        has_resumed = ended.requesters and isinstance(ended.outcome, Cancelled) and str(ended.outcome) == GOES_ON
        if following.command.action == "resume" and has_resumed:
            self._answer(following, f"cancelled the {ended.said}; the run goes on")
        else:
            self._start(following)

    def note_left(self, said: str) -> None:
        """Find out and record what came of an action, see `under_way`, in which an earlier observer was killed."""
        name, _, author = said.partition(" by ")
        if name.partition(" ")[0] in _GIVE_WAY:
            self._note_left(name, "lost with its observer", author)
            return
        action = _Action(wire.Act(0, _FOLLOW_UP, author))
        action.name = name
        self._start(action)

    def _note_left(self, name: str, said: str, author: str) -> None:
        text = journal.sentence(name, said, author)
        self._events.add(wire.Event(time.time_ns(), text, None, "warning", name, author))

    def close(self) -> None:
        """Cancel the action that is under way, and wait a moment for its end; whoever has asked is answered now."""
        if self._next is not None:
            self._answer(self._next, Refused(TOO_LATE))
            self._next = None
        self._cancel()
        if self._present is not None and self._present.thread is not None:
            self._present.thread.join(_END_S)
            if self._present.outcome is None:
                self._present.outcome = Unheard(_LEFT)
        self._take_outcome()


def _author(command: wire.Act | wire.Cancel) -> str:
    return clean_line(command.who, 100) or "somebody"


def _no_action(command: wire.Act) -> Refused:
    return Refused(f"there is no action {clean_line(command.action, 40)!r}")
