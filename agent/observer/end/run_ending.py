"""The end of a run that was asked for: on this host, on all others at once, and the sum of what has ended.

The head ends its own processes, has each branch do the same at the same time, so that no launcher starts again what
another one has lost, and adds up.  A branch passes on what is asked of it here; where the head does not begin soon, it
ends its own host, and says so.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ddptop.agent import wire
from ddptop.agent.control import deadline
from ddptop.agent.control.events import Events
from ddptop.agent.end import escalation
from ddptop.agent.observer.hosts import questions
from ddptop.agent.observer.hosts.elsewhere import is_elsewhere
from ddptop.agent.observer.hosts.ends import OtherEnds
from ddptop.agent.observer.hosts.questions import Answer, Spread
from ddptop.agent.observer.service.requests import Requests
from ddptop.agent.run import states
from ddptop.agent.run.rundir import Run, RunDir, RunDirError
from ddptop.agent.text import clean_line, plural

_log = logging.getLogger("ddptop.observer")

_HEAD_S: Final = 2.0
"""Seconds after which a branch ends its own host, where the head has neither answered nor begun."""
READ_S: Final = 5.0
"""Seconds after which another observer refuses what was asked of it: it was under way for too long."""
LADDER_S: Final = 10.0
"""Seconds beyond the grace period in which another host answers a kill: SIGKILL, and processes that are slow to die."""
_MARGIN_S: Final = 2.0
"""Seconds more in which the head answers a branch: it waits for others."""
_MOST_LEFT: Final = 1024


@dataclass(frozen=True, slots=True)
class Total:
    """The result of an ending on all hosts."""

    ranks: int
    helpers: int
    hosts: tuple[str, ...]
    """The hosts that have answered, this one first."""
    survivors: tuple[str, ...] = ()
    unknown: Mapping[str, int] = field(default_factory=dict)
    """By host that did not answer, its ranks."""

    @property
    def text(self) -> str:
        """The result in one line."""
        ended = escalation.counted(self.ranks, self.helpers)
        where = f" on {self.hosts[0]}" if len(self.hosts) == 1 else f" on {plural(len(self.hosts), 'host')}"
        left = f"{len(self.survivors)} left" + "".join(f"; {survivor}" for survivor in self.survivors)
        return f"{ended}{where} ended, {left}" + "".join(f"; {each}" for each in escalation.unheard(self.unknown))

    @property
    def done(self) -> bool:
        """True where nothing is left, on any host."""
        return not self.survivors and not self.unknown


def add_up(spread: Spread, here: str, outcome: escalation.Outcome, missing: int = 0) -> Total:
    """Return the sum of the answers and of what has ended on this host.

    Args:
        here: the name of this host.
        outcome: of this host.
        missing: ranks of the run that no known host has.
    """
    ranks, helpers, left = outcome.ranks, outcome.helpers, list(outcome.survivors)
    unknown = dict(spread.unknown)
    answered = [here]
    for host, reply in spread.replies.items():
        if reply.census is None:
            # A refusal, or an observer of another version: it says in words what it has done.
            left.append(f"{clean_line(host, 60)}: {clean_line(reply.text, 200)}")
            continue
        answered.append(host)
        ranks += reply.census.ranks
        helpers += reply.census.helpers
        left += [f"{clean_line(host, 60)}: {clean_line(each, 200)}" for each in reply.census.left]
    if missing > 0:
        unknown[escalation.OTHER_HOSTS] = missing
    return Total(ranks, helpers, tuple(answered), tuple(left), unknown)


@dataclass(slots=True)
class _PassedOn:
    """A kill of the run that this branch has passed on to the head."""

    command: wire.Kill
    at: float
    answer: Answer
    is_over: bool = False
    """The head has answered, or will not."""

    @property
    def reply(self) -> wire.Reply | None:
        """The answer of the head; that there is none is noticed by the time that has passed."""
        return self.answer.result() if self.answer.done() else None


class RunEnding:
    """The end of the run, by the first who asks for it."""

    def __init__(
        self,
        directory: RunDir,
        requests: Requests,
        others: OtherEnds,
        host: str,
        events: Events,
    ) -> None:
        """Prepare.

        Args:
            directory: of the run.
            requests: the way for replies.
            others: the other hosts, and the ends of ranks there that are known.
            host: the name of this one.
            events: takes each stage, and what is not as it was asked for.
        """
        self.killed_by: str | None = None
        """Author of the first kill of the run."""
        self.outcome: escalation.Outcome | None = None
        """What has ended on this host."""
        self.total: Total | None = None
        """What has ended on all hosts; None where this one is the only one, or the head adds up."""
        self.countdown = ""
        """While processes are being ended: those that are left, and the time of the next stage."""
        self._problem = "not carried out"
        self._directory = directory
        self._requests = requests
        self._others = others
        self._hosts = others.hosts
        self._host = host
        self._events = events
        self._thread: threading.Thread | None = None
        self._grace: escalation.Grace | None = None
        """While this observer ends the run: the time until SIGKILL."""
        self._spread: Spread | None = None
        self._passed_on: _PassedOn | None = None
        self._adds_up = False
        """This observer adds up what has ended on all hosts."""
        self._waiting: list[tuple[bytes, int]] = []

    @property
    def is_going_on(self) -> bool:
        """Say whether the run is being ended now."""
        return (
            (self._thread is not None and self._thread.is_alive())
            or (self._spread is not None and self._spread.is_waiting)
            or (self._passed_on is not None and not self._passed_on.is_over)
            or (self._adds_up and self.outcome is not None and self.total is None)
        )

    @property
    def is_for_all(self) -> bool:
        """Say whether this observer ends the run on all hosts, and no other one does."""
        return self._hosts.role != "branch"

    def ask(self, sender: bytes, command: wire.Kill, run: Run) -> str:
        """Begin to end the run, or have the head do it; return what has begun here and now, empty where nothing has.

        One that has begun ends sooner where that is asked for: who is in a hurry need not wait for who was not.
        """
        self._waiting.append((sender, command.id))
        passes_on = self._hosts.role == "branch" and not is_elsewhere(sender)
        if passes_on and self._passed_on is None:
            self._pass_on(command)
        elif passes_on and self._passed_on is not None and command.grace_s < self._passed_on.command.grace_s:
            self._tell(questions.HEAD, command)
        if self.killed_by is not None:
            return self._hurry(command)
        if passes_on:
            return ""
        self.begin(run, command.grace_s, who(command), for_all=self.is_for_all)
        return "kill requested"

    def _hurry(self, command: wire.Kill) -> str:
        if self._grace is None or not self._grace.cut(command.grace_s):
            return ""
        if self._spread is not None:
            for each in self._hosts.hosts():
                if each.state != questions.GONE:
                    self._tell(each.host, command)
        return f"kill within {command.grace_s:g} s requested"

    def _tell(self, host: str, command: wire.Kill) -> Answer:
        """Have another host end the run, or hurry; it answers who has asked it first."""
        patience_s = command.grace_s + LADDER_S + (_MARGIN_S if host == questions.HEAD else 0.0)
        return self._hosts.ask(host, deadline.limited(command, READ_S), patience_s)

    def _pass_on(self, command: wire.Kill) -> None:
        self._passed_on = _PassedOn(command, time.monotonic(), self._tell(questions.HEAD, command))

    def begin(self, run: Run, grace_s: float, author: str, *, for_all: bool) -> None:
        """End the processes of this host, and have the branches end theirs where that is `for_all`."""
        self.killed_by = author
        # If this observer is killed meanwhile, the next one must know that the run was killed and did not fail.
        with contextlib.suppress(OSError, RunDirError):
            self._directory.update(killed_by=author)
        self._adds_up = for_all and (states.has_other_hosts(run) or bool(self._hosts.hosts()))
        if for_all and self._hosts.role == "head":
            command = deadline.limited(wire.Kill(0, grace_s, who=author), READ_S)
            self._spread = Spread(self._hosts, command, grace_s + LADDER_S, spared=self._others.ended())
        self._grace = escalation.Grace(grace_s)
        self._thread = threading.Thread(target=self._end, args=(run, self._grace), daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            # No more threads on this machine: this one stands still meanwhile, and does what it is asked to.
            self._end(run, self._grace)

    def _end(self, run: Run, grace: escalation.Grace) -> None:
        try:
            self.outcome = escalation.end(self._directory, run, grace, self.tell_stage, self.note)
        except Exception as error:  # a wall: the sender must get a reply
            _log.exception("kill")
            self._problem = f"the kill failed: {clean_line(repr(error))}"

    def here(self, text: str) -> str:
        """Return what was done on this host, with its name where there are others."""
        return f"{self._host}: {text}" if self._hosts.role != "alone" else text

    def tell_stage(self, line: str) -> None:
        """Say what is being ended."""
        self._events.say(self.here(line), "warning")

    def note(self, line: str) -> None:
        """Take the line on the processes left, and the time of the next stage."""
        self.countdown = line

    def resume(self, run: Run) -> None:
        """Continue the ending during which an earlier observer was killed."""
        if run.killed_by is not None:
            self.begin(run, run.grace_s, run.killed_by, for_all=self.is_for_all)

    def turn(self, run: Run) -> None:
        """Notice what others do, or do not do, and answer when all is done; to be called from time to time."""
        self._watch_head(run)
        if self._thread is None or self._thread.is_alive():
            return
        if self._adds_up and self.total is None and not (self._spread is not None and self._spread.is_waiting):
            self._add_up(run)
        if not self._adds_up or self.total is not None:
            # The end of this process takes a moment more, and other observers wait.
            self._answer([each for each in self._waiting if is_elsewhere(each[0])])

    def _watch_head(self, run: Run) -> None:
        """End this host where the head does not do so for all of them."""
        passed = self._passed_on
        if passed is None or passed.is_over:
            return
        now = time.monotonic()
        is_linked = self._hosts.role == "branch"
        if passed.reply is not None:
            passed.is_over = True
            if self.killed_by is None and not passed.reply.done:
                # A refusal: nothing was done.
                self._answer(self._waiting)
                self._passed_on = None
        elif self.killed_by is None and (now > passed.at + _HEAD_S or not is_linked):
            text = f"the head of the run does not answer: the kill ends only what is on {self._host}"
            self._events.say(text, "error")
            self.begin(run, passed.command.grace_s, who(passed.command), for_all=False)
            self._adds_up = passed.is_over = True
        elif now > passed.at + passed.command.grace_s + LADDER_S + _MARGIN_S or (self.outcome and not is_linked):
            self._adds_up = passed.is_over = True

    def _add_up(self, run: Run) -> None:
        if self.outcome is None:
            return
        known = self._hosts.hosts()
        spread = self._spread
        if spread is None:
            # Nobody has asked the other hosts, or the head, which did, has not said what came of it.
            spread = Spread.unasked(known, spared=self._others.ended())
        here = run.local_world or len(self._directory.members())
        self.total = add_up(spread, self._host, self.outcome, run.world - here - sum(len(each.ranks) for each in known))

    def _answer(self, waiting: list[tuple[bytes, int]]) -> None:
        reply = self._reply()
        for sender, number in waiting:
            # Only another observer adds up.
            census = reply.census if is_elsewhere(sender) else None
            self._requests.reply(sender, msgspec.structs.replace(reply, id=number, census=census))
        self._waiting = [each for each in self._waiting if each not in waiting]

    def close(self, late: list[tuple[bytes, int]]) -> None:
        """Answer everybody who has asked, those who came last included."""
        self._answer([*self._waiting, *late])

    def _reply(self) -> wire.Reply:
        if self._passed_on is not None and self._passed_on.reply is not None:
            return self._passed_on.reply
        if self.outcome is None:
            return wire.Reply(0, False, self.summary)
        done = not self.outcome.survivors if self.total is None else self.total.done
        census = wire.Census(self.outcome.ranks, self.outcome.helpers, self.outcome.survivors[:_MOST_LEFT])
        return wire.Reply(0, done, self.summary, census=census)

    @property
    def summary(self) -> str:
        """The outcome, one line."""
        if self._passed_on is not None and self._passed_on.reply is not None:
            return clean_line(self._passed_on.reply.text, 400)
        if self.total is not None:
            return self.total.text
        return self.outcome.text if self.outcome else self._problem


def who(command: wire.Kill) -> str:
    """Return the author of a kill."""
    return clean_line(command.who, 100) or "somebody"
