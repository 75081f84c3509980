"""One action: what was asked for, by whom, what it waits for, and what ends its wait.

Actions go on in the relay's thread, which waits for nobody: each is a generator that yields the seconds after which it
goes on at the latest, and returns what came of it.  It goes on sooner where anything has arrived.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from ddptop.agent import wire
from ddptop.agent.observer.actions.ranks import Ranks
from ddptop.agent.observer.model.situation import Circumstances
from ddptop.agent.run.diagnoses import DIAGNOSES
from ddptop.agent.run.identity import may_live
from ddptop.agent.run.rundir import Process, RunDir
from ddptop.agent.text import clean_line
from ddptop.agent.wire.vocabulary.refusals import Cancelled, Hung, Refused

GOES_ON: Final = "cancelled; the run goes on"
"""The refusal of an action behind which all ranks make steps again."""
NAP_S: Final = 0.1
"""Seconds between two looks of an action that waits for ranks, where nothing arrives."""
_SOON_S: Final = 0.2
"""Seconds of waiting for ranks after which that is shown; most pauses take less."""
_OF_STEPS: Final = ("step", *(name for name, each in DIAGNOSES.items() if each.steps is not None))

_Found = TypeVar("_Found")
Turns = Generator[float, None, _Found]
"""The rest of an action; it yields the seconds after which it goes on at the latest."""


class Diagnosed(NamedTuple):
    """A diagnosis that is kept with the run."""

    folder: Path
    finding: str
    """Its most important sentence."""


Outcome = str | wire.Parameters | Diagnosed
"""A line, the answer to a question, or what is kept with the run."""


class Action:
    """An action on all ranks."""

    def __init__(
        self,
        command: wire.Act,
        directory: RunDir,
        ranks: Ranks,
        circumstances: Circumstances | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take what was asked for, of these ranks of a run."""
        self.command = command
        self.directory = directory
        self.ranks = ranks
        self.circumstances = circumstances or Circumstances()
        """Those of now."""
        self.clock = clock
        self.author = author_of(command)
        # Of a diagnosis a number is the one that it has in the lists of what is kept.
        self.name = f"step {command.steps}" if command.action == "step" else command.action
        self.began = clock()
        self.requesters: list[tuple[bytes, int]] = []
        """Whoever has asked for it and was not answered, each with the number of the request."""
        self.callers: list[Process | None] = []
        """Their processes; None: one that is not known, or on another host."""
        self.turns: Turns[Outcome] | None = None
        """None before its ranks are found."""
        self.outcome: Outcome | Refused | None = None
        """None until that is known; some work may still follow."""
        self.is_answered = False
        self.line = ""
        """The ranks that it waits for, in one line; empty where it waits for none, or for a moment only."""
        self.is_working = False
        """True while the ranks do what they are held for: it does not wait for them to come to a step."""
        self.is_cancelled = False
        self.is_decided = False
        """True once the scripts save, or end: an action that has come so far cannot be cancelled."""
        self._waits_since = self._grew = self.began
        self._progress = -1

    @property
    def said(self) -> str:
        """The action and its author."""
        return f"{self.name} by {self.author}"

    @property
    def can_be_cancelled(self) -> bool:
        """True while its ranks can still go on as if nobody had asked."""
        return self.outcome is None and not self.is_decided

    @property
    def is_forsaken(self) -> bool:
        """True for a diagnosis where nobody who has asked for it lives."""
        return (
            self.command.action in DIAGNOSES
            and bool(self.callers)
            and not any(each is None or may_live(each) for each in self.callers)
        )

    def is_the_same(self, other: Action) -> bool:
        """Say whether one outcome serves both; two steps are two, whoever asks."""
        if self.command.action in _OF_STEPS or other.is_cancelled or other.is_answered:
            return False
        return (self.said, self.command.checkpoint) == (other.said, other.command.checkpoint)

    @property
    def hang(self) -> str:
        """How the run hangs; empty where it does not."""
        hang = self.circumstances.hang
        return hang.ageless if hang is not None and hang.kind == "hang" and hang.until_at_ns is None else ""

    def wait(self) -> None:
        """Begin to wait for ranks."""
        self._waits_since, self._progress = self.clock(), -1

    @property
    def waited_s(self) -> float:
        """Seconds since then."""
        return self.clock() - self._waits_since

    def check(self, after: str = "") -> None:
        """Raise `Cancelled` where the action was cancelled; `after` as below."""
        if self.is_cancelled:
            raise Cancelled(f"cancelled; {after}" if after else GOES_ON)

    def check_wait(self, after: str = "") -> None:
        """Go on to wait for ranks.

        Args:
            after: what the ranks do after they are not waited for any longer; empty: the run goes on.

        Raises:
            Cancelled: the action was cancelled.
            Hung: the run hangs, so that its ranks come to no step.
        """
        self.check(after)
        if self.waited_s > _SOON_S and self.hang:
            raise Hung(f"{self.hang}; {after}" if after else self.hang)

    def stuck_s(self, progress: int) -> float:
        """Return the seconds for which a number that grows with the steps of the ranks has not grown."""
        if progress > self._progress:
            self._progress, self._grew = progress, self.clock()
        return self.clock() - self._grew

    def tell(self, line: str) -> None:
        """Say what it waits for, where that takes longer than a moment."""
        if self.waited_s > _SOON_S:
            self.line = line

    def decide(self) -> None:
        """Let nobody cancel the action from now on; it waits for no ranks."""
        self.is_decided, self.line = True, ""


def author_of(command: wire.Act | wire.Cancel) -> str:
    """Return who asks."""
    return clean_line(command.who, 100) or "somebody"


def aside(work: Callable[[], _Found]) -> Turns[_Found]:
    """Have a thread of its own do what may take long, such as on a disk, and return what it returns.

    Raises:
        Refused: there is no room for a thread.
        Exception: what the work raises.
    """
    done: Future[_Found] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as error:
            done.set_exception(error)

    try:
        threading.Thread(target=run, name="action", daemon=True).start()
    except RuntimeError as error:
        raise Refused("this machine has no room for another thread; end something, and try again") from error
    while not done.done():
        yield 0.01
    return done.result()
