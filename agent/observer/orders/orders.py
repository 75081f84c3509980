"""Commands to the observer, and the endings and signals that carry them out.

Each command is one message and gets one reply: done, or refused with the reason.  An ending
takes seconds and runs in a thread, so that the run's state is published meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from ddptop.agent import wire
from ddptop.agent.control import journal
from ddptop.agent.control.deadline import lateness
from ddptop.agent.observer.end import escalation, processes
from ddptop.agent.observer.relay.door.requests import TOO_LATE, Requests
from ddptop.agent.run.identity import boot
from ddptop.agent.run.rundir import Process, Run, RunDir, RunDirError
from ddptop.agent.text import clean_line

_log = logging.getLogger("ddptop.observer")

_LONGEST_GRACE_S: Final = 3600.0
_PATIENCE_S: Final = 2.0
_OTHERS_S: Final = 15.0
"""Seconds beyond the grace period after which this process ends the run itself, where another one has begun to."""

Say = Callable[[str, str, "int | None"], None]
"""Publishes an event of text, level and rank."""


class Orders:
    """Carries out `wire.Kill`, and publishes the event of a `wire.Note`."""

    def __init__(
        self,
        directory: RunDir,
        requests: Requests,
        say: Say,
        publish: Callable[[wire.Event], None] = lambda event: None,
    ) -> None:
        self.killed_by: str | None = None
        """Author of the first kill of the run."""
        self.ranks_killed_by: dict[int, str] = {}
        """By rank, the author of its kill."""
        self.outcome: escalation.Outcome | None = None
        self.countdown = ""
        """While processes are being ended: those that are left, and the time of the next stage."""
        self._problem = "not carried out"
        self._others_until: float | None = None
        """While another process ends the run, because this one was stopped or slow: when to do it here instead."""
        self._directory = directory
        self._requests = requests
        self._say = say
        self._publish = publish
        self._ending: threading.Thread | None = None
        self._partial_endings: list[threading.Thread] = []
        self._waiting: list[tuple[bytes, int]] = []

    @property
    def ending(self) -> bool:
        """Say whether the run is being ended now."""
        return self._others_until is not None or (self._ending is not None and self._ending.is_alive())

    def turn(self, run: Run) -> None:
        """Carry out the commands that have arrived."""
        for sender, command in self._requests.received():
            refusal = lateness(command) or self._obey(sender, command, run)
            if refusal is not None:
                self._publish_refusal(command, refusal)
                self._requests.reply(sender, wire.Reply(command.id, False, refusal))
        self._watch_others(run)

    def await_parts(self) -> None:
        """Wait for the outcomes of the endings of single ranks and processes."""
        for thread in self._partial_endings:
            # The group ends right after its rank, and the thread may still be counting survivors.
            thread.join(_PATIENCE_S)

    def close(self) -> None:
        """Give the last replies, after this process has released the run: new commands are refused."""
        self.await_parts()
        self._requests.refuse()
        for sender, command in self._requests.received():
            if self.outcome is not None and _ends_all(command):
                # The run is ended already.
                self._waiting.append((sender, command.id))
            else:
                self._requests.reply(sender, wire.Reply(command.id, False, TOO_LATE))
        done = self.outcome is not None and not self.outcome.survivors
        for sender, number in self._waiting:
            self._requests.reply(sender, wire.Reply(number, done, self.summary))

    @property
    def summary(self) -> str:
        """The outcome of the ending, one line."""
        return self.outcome.text if self.outcome else self._problem

    def resume_ending(self, run: Run) -> None:
        """Continue the ending during which an earlier observer was killed."""
        if run.killed_by is not None:
            self._end_run(run, run.grace_s, run.killed_by)

    def learn(self, run: Run) -> None:
        """Note that another process ends the run, where the record says so: the deaths of its ranks are no failure."""
        if self.killed_by is not None:
            return
        with contextlib.suppress(RunDirError):
            self.killed_by = self._directory.read().killed_by
        if self.killed_by is not None:
            self._problem = f"{self.killed_by} ended it without the observer, which did not answer"
            self._others_until = time.monotonic() + run.grace_s + _OTHERS_S

    def _watch_others(self, run: Run) -> None:
        """End the run here where the other process that ends it takes too long."""
        if self._others_until is None:
            return
        if not processes.find(run, self._directory.members()):
            self._others_until = None
        elif time.monotonic() > self._others_until and self.killed_by is not None:
            self._others_until = None
            self._end_run(run, run.grace_s, self.killed_by)

    def forget_ranks(self) -> None:
        """Forget the kills of single ranks: they do not explain the deaths of a new generation."""
        self.ranks_killed_by.clear()

    def _obey(self, sender: bytes, command: wire.Command, run: Run) -> str | None:
        """Begin to carry out a command, whose reply comes later, or return the reason for its refusal."""
        if isinstance(command, wire.Note):
            self._publish(command.event)
            self._requests.reply(sender, wire.Reply(command.id, True, "told"))
            return None
        if not isinstance(command, wire.Kill):
            return "the observer only ends runs; ask the ranks for everything else"
        if not (math.isfinite(command.grace_s) and 0 <= command.grace_s <= _LONGEST_GRACE_S):
            return f"a grace period is 0 to {_LONGEST_GRACE_S:.0f} seconds"
        if command.pid is not None and command.started is None:
            return f"process {command.pid}: say when it started, so that no other of its number is meant"
        who = _who(command)
        whole = command.rank is None and command.pid is None
        if self.killed_by is not None and not whole:
            return "the whole run is being killed already"
        if command.signal is not None:
            return self._signal(sender, command, run, who)
        if whole:
            self._waiting.append((sender, command.id))
            if self.killed_by is None:
                self._acted("kill", f"kill requested · {who}", who)
                self._end_run(run, command.grace_s, who)
            return None
        self._acted("kill", f"{_what(command)} requested · {who}", who, command.rank)
        if command.pid is None and command.rank is not None:
            self.ranks_killed_by.setdefault(command.rank, who)
        thread = threading.Thread(target=self._end_part, args=(sender, command, run), daemon=True)
        self._partial_endings = [each for each in self._partial_endings if each.is_alive()] + [thread]
        thread.start()
        return None

    def _publish_refusal(self, command: wire.Command, refusal: str) -> None:
        if isinstance(command, wire.Kill):
            what, who = _what(command), _who(command)
            text = journal.sentence(what, refusal, who, refused=True)
            self._acted(_action(command), text, who, command.rank)

    def _acted(self, action: str, text: str, who: str, rank: int | None = None) -> None:
        self._publish(wire.Event(time.time_ns(), text, rank, "warning", action, who))

    def _signal(self, sender: bytes, command: wire.Kill, run: Run, who: str) -> str | None:
        assert command.signal is not None
        if command.signal not in signal.valid_signals():
            return f"there is no signal {command.signal} on this platform"
        try:
            targets = escalation.signal_targets(
                run, self._directory.members(), command.signal, command.rank, _process(command)
            )
            text = escalation.deliver(targets, command.signal)
        except escalation.NotOurs as refusal:
            return str(refusal)
        if command.signal in (signal.SIGKILL, signal.SIGTERM):
            for target in targets:
                if target.role == "rank" and target.rank is not None:
                    self.ranks_killed_by.setdefault(target.rank, who)
        self._acted("signal", f"{text} · {who}", who, command.rank)
        self._requests.reply(sender, wire.Reply(command.id, True, text))
        return None

    def _end_run(self, run: Run, grace_s: float, who: str) -> None:
        self.killed_by = who
        # If this observer is killed meanwhile, the next one must know that the run was killed and did not fail.
        with contextlib.suppress(OSError, RunDirError):
            self._directory.update(killed_by=who)
        self._ending = threading.Thread(target=self._end, args=(run, grace_s), daemon=True)
        self._ending.start()

    def _end(self, run: Run, grace_s: float) -> None:
        try:
            self.outcome = escalation.end(self._directory, run, grace_s, self._progress, self._count_down)
        except Exception as error:  # a wall: the sender must get a reply
            _log.exception("kill")
            self._problem = f"the kill failed: {clean_line(repr(error))}"

    def _end_part(self, sender: bytes, command: wire.Kill, run: Run) -> None:
        grace_s, process, directory = command.grace_s, _process(command), self._directory
        try:
            if process is not None:
                outcome = escalation.end_process(directory, run, process, grace_s, self._progress, self._count_down)
                text = outcome.text_of(process)
            else:
                assert command.rank is not None
                outcome = escalation.end_rank(directory, run, command.rank, grace_s, self._progress, self._count_down)
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
            self._acted("kill", journal.sentence(_what(command), done, _who(command)), _who(command), command.rank)
        else:
            self._publish_refusal(command, reply.text)
        self._requests.reply(sender, reply)

    def _count_down(self, line: str) -> None:
        self.countdown = line

    def _progress(self, line: str) -> None:
        self._say(line, "warning", None)


def _who(command: wire.Kill) -> str:
    return clean_line(command.who, 100) or "somebody"


def _action(command: wire.Kill) -> str:
    return "kill" if command.signal is None else "signal"


def _ends_all(command: wire.Command) -> bool:
    if not isinstance(command, wire.Kill):
        return False
    return command.rank is None and command.pid is None and command.signal is None


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
