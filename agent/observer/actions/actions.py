"""Pause, step, resume, checkpoint, stop, checksum and the diagnoses of the whole group: one request, one reply.

The observer of the head acts, one action at a time, in the relay's thread; a branch hands requests on to it.  What an
action waits for is in the run's state for all to see; what came of it is an event.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.control.events import Events, sentence
from ddptop.agent.control.wakeup import WakeUp
from ddptop.agent.end import freezer
from ddptop.agent.observer.actions import pause
from ddptop.agent.observer.actions.action import (
    GOES_ON,
    Action,
    Diagnosed,
    Outcome,
    Turns,
    aside,
    author_of,
)
from ddptop.agent.observer.actions.checksums import checksum
from ddptop.agent.observer.actions.join import join, leave
from ddptop.agent.observer.actions.memory import memory
from ddptop.agent.observer.actions.pause import LEASE_S
from ddptop.agent.observer.actions.probe import probe
from ddptop.agent.observer.actions.profile import UNASKED, OnVerdict, profile
from ddptop.agent.observer.actions.ranks import Ranks
from ddptop.agent.observer.hosts.elsewhere import is_elsewhere
from ddptop.agent.observer.hosts.questions import OtherHosts
from ddptop.agent.observer.jobs import unprepared
from ddptop.agent.observer.model.run_model import RunModel
from ddptop.agent.observer.model.situation import Circumstances
from ddptop.agent.observer.service.forwarding import Forwarding
from ddptop.agent.observer.service.requests import TOO_LATE
from ddptop.agent.observer.service.service import Service
from ddptop.agent.run import states
from ddptop.agent.run.diagnoses import DIAGNOSES
from ddptop.agent.run.rundir import Process, RunDir, RunDirError
from ddptop.agent.run.switches import thresholds
from ddptop.agent.text import clean_line
from ddptop.agent.wire.vocabulary.refusals import Awaiting, Busy, Cancelled, Hung, Refused, Unheard

_log = logging.getLogger("ddptop.observer")

_SETTLE: Final = "settle"
_FOLLOW_UP: Final = "follow up"
_ASKED: Final[Mapping[str, Callable[[Action], Turns[Any]]]] = {
    "pause": pause.pause,
    "step": pause.step,
    "resume": pause.resume,
    "checkpoint": pause.checkpoint,
    "stop": pause.stop,
    "checksum": checksum,
    "profile": profile,
    "probe": probe,
    "memory": memory,
}
"""By name, what an action does that can be asked for: it returns an `Outcome`."""
_OF_ANY_RANKS: Final[Mapping[str, Callable[[Action], Turns[str]]]] = {"join": join, "leave": leave}
"""The same, of ranks that need not have an agent."""
_OWN: Final[Mapping[str, Callable[[Action], Turns[str]]]] = {_SETTLE: pause.settle, _FOLLOW_UP: pause.follow_up}
"""What this observer does by itself; nobody asks for it."""
_FREEZE: Final = "freeze"
_SETTLE_S: Final = LEASE_S + 2.0
"""Seconds for which some ranks have to be held and others not, with no action under way, before that is put right."""
_END_S: Final = 2.0
"""Seconds that an action has to end with the observer."""
_RECORD_S: Final = 0.05
"""Seconds between two looks for the record of a rank."""
_LEFT: Final = "its observer left meanwhile; `ddptop status` tells whether it was done"
_NOTHING: Final = "no action waits for ranks"
_KILLED: Final = "the run is being killed"


class Actions:
    """The action that is under way; for the relay's thread, where nothing else is said."""

    def __init__(
        self,
        directory: RunDir,
        model: RunModel,
        forwarding: Forwarding,
        service: Service,
        events: Events,
        others: OtherHosts,
        wake: WakeUp,
        changed: WakeUp,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Prepare.

        Args:
            directory: of the run.
            model: what its ranks say of themselves.
            forwarding: the way to the ranks.
            service: the way back for replies.
            events: takes what came of each action.
            others: the other hosts.
            wake: has the relay call `turn`.
            changed: is set where another action is under way, or waits for other ranks.
            clock: monotonic, in seconds.
            wall: seconds since the epoch.
        """
        self.is_killed = False
        """The run is being killed: nothing else is done with it. For the observer's main thread to set."""
        self._directory = directory
        self._model = model
        self._forwarding = forwarding
        self._service = service
        self._events = events
        self._others = others
        self._wake = wake
        self._changed = changed
        self._clock = clock
        self._wall = wall
        self._present: Action | None = None
        """The action that is under way, or has work left after its answer."""
        self._beside: list[Action] = []
        """What stops processes where they are, or lets them go on, whatever else is under way."""
        self._next: Action | None = None
        """A resume or a stop that has cancelled it, or what was asked for while this observer acted by itself."""
        self._due = 0.0
        """When the present one goes on at the latest."""
        self._shown = ("", "")
        self._circumstances = Circumstances()
        self._on_verdict = OnVerdict(thresholds.of_user().profile)
        self._uneven_since: float | None = None
        self._is_settled = False
        """Ranks are as uneven as they are meant to be: one that has ended, or is on its way to a step."""
        self._left = ""
        """The action in which an earlier observer was killed."""
        self._ends_at: float | None = None
        """When this observer waits for no action any more; None: it stays."""
        self._has_ended = threading.Event()

    @property
    def under_way(self) -> str:
        """The action that is under way and its author; empty where there is none. For any thread."""
        present = self._present
        # Of what this observer puts right an event says what came of it.
        return "" if present is None or present.is_answered or present.command.action in _OWN else present.said

    @property
    def waiting(self) -> str:
        """The ranks that it waits for, see `Supervision.waiting`; for any thread."""
        present = self._present
        return present.line if self.under_way and present is not None else ""

    @property
    def pause_s(self) -> float | None:
        """Seconds until `turn` is due at the latest; None where nothing is under way."""
        return max(0.0, self._due - self._clock()) if self._present is not None or self._beside else None

    # What is asked

    def obey(self, sender: bytes, command: wire.Act | wire.Cancel) -> None:
        """Take what was asked for, which `turn` begins; the reply comes once it is done, or refused."""
        if isinstance(command, wire.Cancel):
            cancels = self._cancel_for(sender, author_of(command))
            self._reply(sender, wire.Reply(command.id, cancels, "" if cancels else _NOTHING))
            return
        before, action = self._present, self._action(command)
        action.requesters.append((sender, command.id))
        caller = None if is_elsewhere(sender) else command.caller
        action.callers.append(None if caller is None else Process(*msgspec.structs.astuple(caller)))
        if command.action not in (*_ASKED, *_OF_ANY_RANKS, _FREEZE):
            self._answer(action, Refused(f"there is no action {clean_line(command.action, 40)!r}"))
        elif self._ends_at is not None or self.is_killed:
            self._reply(sender, wire.Reply(command.id, False, _KILLED if self.is_killed else TOO_LATE))
        elif lacking := self._lacks_agent(command.action):
            self._answer(action, Refused(lacking))
        elif command.action == _FREEZE:
            action.turns = self._freeze(action)
            self._beside.append(action)
        elif command.action == "resume" and freezer.has_stopped(self._directory):
            action.turns = aside(partial(freezer.thaw, self._directory))
            self._beside.append(action)
        elif before is None:
            self._present = action
        elif action.is_the_same(before):
            # The ranks of a run that a scheduler ends ask for the same.
            before.requesters += action.requesters
            before.callers += action.callers
        elif self._next is None and (
            not before.requesters or (command.action == "stop" and before.command.action in DIAGNOSES)
        ):
            # What this observer does by itself makes way; what it puts right takes a moment.
            before.is_cancelled = before.command.action != _SETTLE
            self._next = action
        elif command.action == "resume" and before.can_be_cancelled and self._next is None:
            before.is_cancelled = True
            self._next = action
        else:
            self._answer(action, self._busy_with(before))

    def _lacks_agent(self, action: str) -> str:
        """Return why an action is not for a job that nobody prepared; empty where it is, or the job was prepared."""
        run = self._model.store.run
        if not run.outside or action in (_FREEZE, *_OF_ANY_RANKS):
            return ""
        if action == "resume" and freezer.has_stopped(self._directory):
            # Whoever has stopped it may have had a reason.
            is_ours = freezer.frozen(self._directory) is not None
            return (
                "" if is_ours else f"somebody else has stopped {run.run}: `kill -CONT` lets it go on, as it was stopped"
            )
        return unprepared.refusal(run, self._directory.members().values())

    def _action(self, command: wire.Act) -> Action:
        self._due = 0.0
        ranks = Ranks(self._model, self._others, self._forwarding, self._clock, self._wall)
        action = Action(command, self._directory, ranks, self._circumstances, self._clock)
        if (begins := _OF_ANY_RANKS.get(command.action)) is not None:
            action.turns = begins(action)
        return action

    def _busy_with(self, before: Action) -> Refused:
        doing = f"{before.said} is under way for {self._clock() - before.began:.0f} s"
        if not before.can_be_cancelled:
            return Refused(f"{doing}, and can no longer be cancelled")
        line = before.line.rpartition(": ")[2]
        said = f"{doing}, {line}" if line else doing
        return Awaiting(said) if line and not before.is_working else Busy(said)

    def _cancel_for(self, sender: bytes, author: str) -> bool:
        """Cancel what somebody has asked for; the wish may come late, when it is another one's that is under way."""

        def is_theirs(action: Action) -> bool:
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
        self._present.is_cancelled = True
        return True

    # What goes on

    def turn(self) -> None:
        """Let the action that is under way go on, and begin what follows it."""
        if self._present is None and self._left:
            self._begin_follow_up()
        self._due = math.inf
        self._beside = [action for action in self._beside if self._goes_on(action)]
        while (action := self._present) is not None and not self._goes_on(action):
            self._present = None
            self._end(action)
        if self._ends_at is not None:
            self._end_with_observer(self._ends_at)
        if (shown := (self.under_way, self.waiting)) != self._shown:
            self._shown = shown
            self._changed.set()

    def _goes_on(self, action: Action) -> bool:
        """Let an action go on, and answer it once its outcome is known; return whether work is left."""
        try:
            if action.turns is None and action.ranks.find():
                begins = _ASKED.get(action.command.action) or _OWN[action.command.action]
                action.turns = begins(action)
            pause_s = _RECORD_S if action.turns is None else next(action.turns)
            self._due = min(self._due, self._clock() + pause_s)
            is_left = True
        except StopIteration as end:
            action.outcome, is_left = end.value, False
        except Exception as error:
            action.outcome, is_left = action.outcome or self._refusal(action, error), False
        if action.outcome is not None and not action.is_answered:
            self._answer(action, action.outcome)
        return is_left

    def _freeze(self, action: Action) -> Turns[str]:
        """Stop all processes where they are."""
        store = self._model.store
        run = store.run
        if states.has_other_hosts(run, [rank for rank, each in store.ranks.items() if each.far]):
            # The ranks on the others would wait for these in a collective, and be taken for a hang.
            raise Refused(
                f"{run.run} runs on several hosts, and a freeze stops the processes of one only: nothing is frozen; "
                f"`ddptop pause {run.run}` holds all hosts at the same step"
            )
        beats = [each.beat for each in store.ranks.values() if each.beat is not None]
        timeout_s = min((beat.timeout_s for beat in beats if beat.timeout_s is not None), default=None)
        return (yield from aside(partial(freezer.freeze, self._directory, action.author, timeout_s)))

    def _refusal(self, action: Action, error: Exception) -> Refused:
        """Return why an action was not carried out."""
        match error:
            case Cancelled():
                return error
            case Refused():
                # Whoever is stopped answers nobody: that is the reason, whatever the ranks did not do.
                freeze = None if action.turns is None or action in self._beside else freezer.frozen(self._directory)
                if freeze is not None:
                    return Refused(f"frozen meanwhile by {freeze.who}")
                return Hung(action.hang) if isinstance(error, Unheard) and action.hang else error
            case RunDirError():
                return Refused(str(error))
            case OSError():
                return Refused(f"{error.filename}: {error.strerror}")
        _log.error("an action", exc_info=error)
        return Refused(f"the observer could not: {clean_line(repr(error))}")

    def _end(self, action: Action) -> None:
        """Take what follows an action that has ended."""
        outcome, following, had_requesters = action.outcome, self._next, bool(action.callers)
        assert outcome is not None
        if action.command.who == UNASKED and action.command.action == "profile" and isinstance(outcome, Refused):
            self._on_verdict.not_made()
        if not action.is_answered:
            self._answer(action, outcome)
        if following is None:
            return
        self._next = None
        has_resumed = had_requesters and isinstance(outcome, Cancelled) and str(outcome) == GOES_ON
        if following.command.action == "resume" and has_resumed:
            self._answer(following, f"cancelled the {action.said}; the run goes on")
        else:
            self._present = following

    def _answer(self, action: Action, outcome: Outcome | Refused) -> None:
        """Record what came of an action, and answer whoever has asked for it."""
        action.is_answered, refused, parameters = True, isinstance(outcome, Refused), None
        if isinstance(outcome, wire.Parameters):
            # The observer judges checksums by itself: a question is no action.
            parameters, text = outcome, ""
        else:
            text = str(outcome.folder if isinstance(outcome, Diagnosed) else outcome)
            self._record(action, outcome)
        kind = outcome.kind if isinstance(outcome, Refused) else ""
        for requester, number in action.requesters:
            self._reply(requester, wire.Reply(number, not refused, text, refusal=kind, parameters=parameters))
        action.requesters = []

    def _reply(self, requester: bytes, reply: wire.Reply) -> None:
        self._service.send(requester, wire.encode(reply))

    def _record(self, action: Action, outcome: str | Diagnosed | Refused) -> None:
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
        text = sentence(name, said, action.author, refused=refused)
        level = "warning" if refused else "info"
        self._events.add(wire.Event(time.time_ns(), text, None, level, action.name, action.author))

    # What this observer does by itself

    def each_second(self, circumstances: Circumstances) -> None:
        """Take in how the run is, and begin what this observer does by itself."""
        self._circumstances, now = circumstances, self._clock()
        present, is_branch = self._present, self._others.role == "branch"
        if present is not None:
            present.circumstances = circumstances
            if present.is_forsaken:
                self._cancel()
        is_free = present is None and not is_branch and not circumstances.is_held
        if (unasked := self._on_verdict.due(circumstances.blamed, now, is_free=is_free)) is not None:
            self._present = self._action(unasked)
        is_uneven = circumstances.is_uneven and not self.is_killed
        if not is_uneven:
            self._is_settled = False
        if not is_uneven or self._is_settled or self._present is not None or is_branch:
            self._uneven_since = None
        elif self._uneven_since is None:
            self._uneven_since = now
        elif now - self._uneven_since >= _SETTLE_S:
            self._uneven_since = None
            self._present = self._action(wire.Act(0, _SETTLE, UNASKED))

    def note_left(self, said: str) -> None:
        """Find out and record what came of an action, see `under_way`, in which an earlier observer was killed.

        For the observer's main thread.
        """
        self._left = said
        self._wake.set()

    def _begin_follow_up(self) -> None:
        (name, _, author), self._left = self._left.partition(" by "), ""
        if name.partition(" ")[0] in DIAGNOSES:
            self._note_left(name, "lost with its observer", author)
            return
        self._present = self._action(wire.Act(0, _FOLLOW_UP, author))
        self._present.name = name

    def _note_left(self, name: str, said: str, author: str) -> None:
        text = sentence(name, said, author)
        self._events.add(wire.Event(time.time_ns(), text, None, "warning", name, author))

    # Its end

    def close(self) -> None:
        """Cancel the action that is under way, and wait a moment for its end; whoever has asked is answered now.

        For the observer's main thread; nothing that is asked for later is done.
        """
        if self._ends_at is None:
            self._ends_at = self._clock() + _END_S
            self._wake.set()
        self._has_ended.wait(_END_S + 0.5)

    def _end_with_observer(self, ends_at: float) -> None:
        if self._next is not None:
            self._answer(self._next, Refused(TOO_LATE))
            self._next = None
        self._cancel()
        present = self._present
        if present is not None and self._clock() > ends_at:
            present.outcome, self._present = present.outcome or Unheard(_LEFT), None
            self._end(present)
        if self._present is None:
            self._has_ended.set()
        else:
            self._due = min(self._due, ends_at)
