"""The process that looks on at a run until its end, and sends messages on what it sees.

    python …/starter.py ddptop.agent.onlookers.notify.notifier DIRECTORY

It looks every few seconds and is not connected in between, so that the observer makes a frame for it now and then and
no more. Where the observer has gone, its successor comes by the look itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from ddptop.agent.client import look
from ddptop.agent.client.frame import Frame
from ddptop.agent.client.host import settings
from ddptop.agent.client.host.settings import Notify
from ddptop.agent.client.runs import Run, RunDirError
from ddptop.agent.client.start import notifier as start
from ddptop.agent.client.watch import Watch
from ddptop.agent.onlookers.notify.conditions import Conditions, speaks
from ddptop.agent.onlookers.notify.delivery import Delivery
from ddptop.agent.onlookers.notify.messages import Message
from ddptop.agent.onlookers.notify.targets import TargetError, target
from ddptop.agent.text import clean_line
from ddptop.agent.wire.frames import ENDED

LOOK_S: Final = 5.0
"""Seconds between two looks."""
CLAIM_S: Final = 1.0
"""Seconds after which the place of the notifier is taken by another one."""
LAST_S: Final = 600.0
"""Seconds after the end of the run for which messages are still tried."""


def host() -> str:
    """Return the name of this machine, as others reach it."""
    return clean_line(socket.gethostname(), 64)


class Notifier:
    """Looks on at one run."""

    def __init__(self, run: Run, chosen: Notify, say: Callable[[str], None]) -> None:
        """Tell nobody anything yet.

        Args:
            run: the run.
            chosen: the user's settings.
            say: takes a line for the log.
        """
        self._run = run
        self._run_id = run.record().run_id
        self._chosen = chosen
        self._say = say
        self._conditions = Conditions(chosen.kinds, chosen.slow_s, host())
        self._deliveries: dict[str, Delivery | None] = {}
        """By address; None where it is none."""
        self._heart = self._delivery(chosen.heartbeat) if chosen.heartbeat else None
        self._beat_due = 0.0
        self._failure = ""
        """Why the last look that failed did."""

    def _delivery(self, url: str) -> Delivery | None:
        try:
            found = Delivery(target(url), self._say)
        except TargetError as problem:
            self._say(str(problem))
            return None
        found.start()
        return found

    def _wanted(self) -> list[Delivery]:
        """Return the deliveries to the addresses of now; those to others stop. Once the run is gone nothing changes."""
        wanted = dict.fromkeys((*self._chosen.to, *start.targets(self._run)))
        # Behind that look: what it has found is of this run.
        if self._is_there():
            for url, delivery in self._deliveries.items():
                if delivery is not None and url not in wanted:
                    delivery.stop()
            known = self._deliveries
            self._deliveries = {url: known[url] if url in known else self._delivery(url) for url in wanted}
        return [each for each in self._deliveries.values() if each is not None]

    def _is_there(self) -> bool:
        """Say whether the run has not been removed, nor its name taken by another."""
        with contextlib.suppress(RunDirError):
            return self._run.record().run_id == self._run_id
        return False

    def turn(self) -> bool:
        """Look, whatever goes wrong with that: at night nobody would start it again; return False at the end."""
        try:
            return self.look()
        except Exception as problem:
            if str(problem) != self._failure:
                self._failure = str(problem)
                self._say(f"a look has failed, and is tried again: {type(problem).__name__}: {problem}")
            return True

    def look(self) -> bool:
        """Look at the run and send what is to be said; return False once there is nothing more to come."""
        deliveries = self._wanted()
        if not deliveries and self._heart is None:
            return False
        if not self._is_there():
            return False
        try:
            with Watch(self._run, "notifier", ranks=False) as watch:
                frame = look.heard([watch])[0]
        except RunDirError:
            # Removed, it has no more to say.
            return False
        now = time.time()
        messages = [self._explained(each) for each in self._conditions.look(frame, now)]
        if speaks(frame, self._run.ranks_here()):
            for message in messages:
                for delivery in deliveries:
                    delivery.put(message, time.monotonic())
        is_over = frame.state in ENDED
        if not is_over and frame.unobserved_s is None:
            self._beat(frame, now)
        return not is_over

    def _beat(self, frame: Frame, now: float) -> None:
        # Looks come when they come: the nearest one is right.
        if self._heart is None or time.monotonic() < self._beat_due - LOOK_S / 2:
            return
        self._beat_due = time.monotonic() + self._chosen.heartbeat_s
        # One that waits says it as well.
        if self._heart.is_empty:
            steps = "" if frame.step is None else f", step {frame.step:,}"
            message = Message(
                run=frame.run, program=frame.program, host=host(), kind="heartbeat", text=f"{frame.state}{steps}",
                id=f"{frame.run_id}/heartbeat", at=now, state=frame.state, step=frame.step,
            )  # fmt: skip
            self._heart.put(message, time.monotonic())

    def _explained(self, message: Message) -> Message:
        """Return a message, one on a death with the report's kind of the failure and line of code."""
        if message.kind not in ("death", "end") or message.kind_of == "host":
            return message
        try:
            report = self._run.report()
        except Exception:
            # It would not be told a second time.
            return message
        if not report.failed:
            return message
        where = "" if report.first is None else report.first.where
        known = message.kind_of if report.kind is None else report.kind.name
        return replace(message, kind_of=known, line=message.line or where)

    def finish(self) -> None:
        """Wait until all is delivered, for a bounded time; what is taken back meanwhile is waited for no more."""
        give_up = time.monotonic() + LAST_S
        while waiting := [each for each in self._wanted() if not each.is_empty]:
            if time.monotonic() > give_up:
                for each in waiting:
                    self._say(f"{each.shown}: the last messages could not be delivered")
                return
            time.sleep(0.1)


def trial() -> Message:
    """Return a message that says that messages arrive."""
    return Message(
        run="no-run", host=host(), kind="test", text="this is how ddptop tells that something is wrong with a run",
        id="no-run/test", at=time.time(), attach=f"ddptop attach {host()}:RUN",
    )  # fmt: skip


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", flush=True)


def main(directory: str) -> None:
    """Look on at the run in a directory until it is over."""
    run = Run.at(Path(directory))
    # Who only asks whether there is one holds the lock for a moment.
    give_up = time.monotonic() + CLAIM_S
    while start.lock(run) is None:
        if time.monotonic() > give_up:
            return
        time.sleep(0.05)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        chosen = settings.load().notify
    except settings.SettingsError as problem:
        _say(str(problem))
        chosen = Notify()
    with contextlib.suppress(RunDirError):
        notifier = Notifier(run, chosen, _say)
        due = time.monotonic()
        while notifier.turn():
            # Nothing is made up for where the machine slept.
            due = max(due + LOOK_S, time.monotonic() + LOOK_S / 5)
            time.sleep(due - time.monotonic())
        notifier.finish()


if __name__ == "__main__":
    main(sys.argv[1])
    # Threads that wait for a server that hangs are not waited for.
    sys.stdout.flush()
    os._exit(0)
