"""The actions of an observer between ranks and a client: values in, values out, and a clock that the test moves.

The ranks answer by the real table of commands and hold at real gates; their training threads make steps in turns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from ddptop.agent import wire
from ddptop.agent.control.wakeup import WakeUp
from ddptop.agent.observer.actions.actions import Actions
from ddptop.agent.observer.hosts.questions import OtherHosts
from ddptop.agent.observer.model.situation import Circumstances
from ddptop.agent.observer.model.store import Store
from ddptop.agent.rank.commands.executing import Executing
from ddptop.agent.rank.commands.gate import Gate
from ddptop.agent.rank.faults import Faults
from ddptop.agent.run import rundir
from ddptop.agent.run.rundir import Ended, Member, Run, RunDir
from support.bases import marked
from support.fakes.clocks import Clock
from support.fakes.events import SaidEvents
from support.harness import DEADLINE_S

NOBODY: Any = None
_CANCEL = 8
"""Number of each wish to cancel."""


class Rank:
    """One rank: what its commands act on, and a training thread."""

    def __init__(self, number: int, steps: int, clock: Clock[float]) -> None:
        self.rank = number
        self.gate = Gate(clock)
        self.gate.completed = steps
        self.faults = Faults()
        self.device: str | None = None
        self.checks = self.diagnoses = NOBODY
        self.pace = 1
        """Steps that it makes in a turn; 0: none, and it stands at no gate."""
        self.outstanding = 0
        self.checkpoint: Callable[[], wire.Saved] | None = None
        self.has_ended = False
        self.saving = SimpleNamespace(ask=lambda token: self.save(token))  # which a test replaces
        session: Any = self
        self.executing = Executing(session, NOBODY, NOBODY, NOBODY, lambda: None)

    def save(self, token: str) -> wire.Saved | None:
        """Have its checkpoint function called."""
        assert self.checkpoint is not None
        return self.gate.do(token, token, "saving a checkpoint", self.checkpoint)

    def inspect(self, *, stacks: bool) -> wire.Inspection:
        """Return where it stands."""
        return wire.Inspection(self.rank, 0, "agent", 1)

    def move(self) -> None:
        """Make steps, as far as the gate lets it, or do there what it is asked for."""
        for _ in range(self.pace):
            if self.gate.stand():
                return
            self.gate.completed += self.gate.ended_by is None
            self.has_ended = self.gate.ended_by is not None
            self.gate.stand()

    def beat(self) -> wire.Beat:
        """Return a sign of life."""
        saved = self.gate.untold if isinstance(self.gate.untold, wire.Saved) else None
        return wire.Beat(
            self.rank, 1, "running", "", self.gate.completed, None, 0, outstanding=self.outstanding,
            checkpoints=self.checkpoint is not None, hold=self.gate.holding(), saved=saved,
        )  # fmt: skip


class Acting:
    """An observer of ranks that have made so many steps, and a client that asks it for actions."""

    def __init__(self, folder: Path, *steps: int, others: OtherHosts | None = None, **fields: Any) -> None:
        """Make the ranks; `fields` are those of the run."""
        me = rundir.identify(os.getpid())
        assert me is not None
        self.clock = Clock(0.0)
        self.ranks = [Rank(rank, number, self.clock) for rank, number in enumerate(steps)]
        self.directory = RunDir(marked(folder))
        run = Run("acts", "id", "toy.py", (), len(steps), "gloo", "cpu", time.time_ns(), True, state="running")
        self.run = msgspec.structs.replace(run, **fields)
        self.members = {rank: Member(rank, rank, len(steps), me, "host", 0, "", "", None) for rank in range(len(steps))}
        self.store = Store(self.run)
        self.deaf: set[tuple[int, type]] = set()
        """Rank and kind of a command that never arrives."""
        self.lost: set[tuple[int, type]] = set()
        """Those of which the next one does not arrive."""
        self.silent: set[int] = set()
        """Ranks of which nothing is heard."""
        self.asked: list[tuple[int, wire.Command]] = []
        """What has arrived at the ranks, in order."""
        self.waiting: list[str] = []
        """What the actions have waited for, each line once in a row."""
        self.each_turn: Callable[[], object] = lambda: None
        self.nap_s = 0.0
        """Seconds that a turn takes in truth, where something else works meanwhile."""
        self.said = SaidEvents()
        self.replies: dict[bytes, wire.Reply] = {}
        self.cancelled: dict[bytes, wire.Reply] = {}
        """Those to the wishes to cancel."""
        self._under_way: list[tuple[int, wire.Command, Callable[[bytes, int, wire.Reply], object]]] = []
        self._wake, self._changed = WakeUp(), WakeUp()
        self.others = others or OtherHosts()
        self.circumstances = Circumstances()
        self.succeed()
        self.hear()

    def succeed(self) -> None:
        """Have another observer come, as where the one before was killed: what that has sent last does not arrive."""
        here: Any = self
        self._under_way, self.deaf = [], set()
        self.actions = Actions(
            self.directory, here, here, here, self.said, self.others, self._wake, self._changed, self.clock, self.clock
        )

    @property
    def gates(self) -> list[Gate]:
        """Those of the ranks."""
        return [rank.gate for rank in self.ranks]

    @property
    def texts(self) -> list[str]:
        """What the events say."""
        return self.said.texts

    # In place of the model, the way to the ranks, and the way back to the client

    def look(self, *, at_once: bool) -> None:
        """Take in the records."""
        for rank in self.ranks:
            if rank.has_ended and self.members[rank.rank].ended is None:
                ended = Ended(time.time_ns(), 0, stopped_by=rank.gate.ended_by)
                self.members[rank.rank] = msgspec.structs.replace(self.members[rank.rank], ended=ended)
        self.store.know_run(self.run)
        self.store.know_members(self.members, {rank for host in self.others.hosts() for rank in host.ranks})

    def forward(self, requester: bytes, rank: int, command: wire.Command, answer: Any) -> None:
        """Pass a command on, which the rank answers in the next turn."""
        self._under_way.append((rank, command, answer))

    def send(self, requester: bytes, payload: bytes) -> None:
        """Take a reply."""
        reply = wire.read_answer(payload)
        assert isinstance(reply, wire.Reply)
        (self.cancelled if reply.id == _CANCEL else self.replies)[requester] = reply

    # Time

    def hear(self) -> None:
        """Take in what the ranks say of themselves."""
        for rank in self.ranks:
            if rank.rank not in self.silent and not rank.has_ended:
                self.store.apply(rank.beat(), self.clock())

    def turn(self, seconds: float | None = None) -> None:
        """Let all training threads go on and ranks answer, and then the action, after so many seconds."""
        self.each_turn()
        time.sleep(self.nap_s)
        under_way, self._under_way = self._under_way, []
        pause_s = self.actions.pause_s or 0.0
        self.clock.now += (0.001 if under_way else pause_s + 1e-4) if seconds is None else seconds
        for rank in self.ranks:
            if not rank.has_ended:
                rank.move()
        for number, command, answer in under_way:
            key, rank = (number, type(command)), self.ranks[number]
            is_heard = key not in self.deaf and key not in self.lost and number not in self.silent
            self.lost.discard(key)
            if is_heard and not rank.has_ended and (reply := rank.executing.carry_out(b"", command)) is not None:
                self.asked.append((number, command))
                answer(b"", number, reply)
        self.hear()
        self.actions.turn()
        if (line := self.actions.waiting) and line not in self.waiting[-1:]:
            self.waiting.append(line)

    def second(self, seconds: float = 1.0, **circumstances: Any) -> None:
        """Let time go by, at the end of which the observer looks at the run; what is not given is as before."""
        self.clock.now += seconds
        if circumstances:
            self.circumstances = Circumstances(**circumstances)
        self.actions.each_second(self.circumstances)
        self.actions.turn()

    def goes_on(self) -> None:
        """Let leases run out that nobody renews, and the ranks make steps, as far as they may."""
        for seconds in (5.0, *[0.001] * 20):
            self.turn(seconds)

    # The client

    def ask(self, action: str, who: str = "ada", asker: bytes = b"", **more: Any) -> bytes:
        """Ask for an action, and return the name of the asker."""
        asker = asker or f"{who}-{action}".encode()
        self.replies.pop(asker, None)
        self.actions.obey(asker, wire.Act(7, action, who, **more))
        self.actions.turn()
        return asker

    def cancel(self, asker: bytes, who: str = "ada") -> bool:
        """Cancel what somebody has asked for, and return whether that is done."""
        self.actions.obey(asker, wire.Cancel(_CANCEL, who))
        return self.cancelled[asker].done

    def reply(self, asker: bytes) -> wire.Reply:
        """Let time go by until an asker is answered."""
        self.until(lambda: asker in self.replies, f"a reply to {asker!r}")
        return self.replies[asker]

    def act(self, action: str, who: str = "ada", **more: Any) -> wire.Reply:
        """Ask for an action, and return its reply once nothing of it is left to be done."""
        reply = self.reply(self.ask(action, who, **more))
        self.until(lambda: self.actions.pause_s is None, "the rest of it")
        return reply

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Let time go by until something is so."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"no {what}"
            self.turn()

    def waits(self) -> str:
        """Let time go by until an action waits for ranks, and return what it says."""
        self.until(lambda: self.actions.waiting, "action that waits")
        return self.actions.waiting

    def close(self) -> None:
        """Close what wakes the threads."""
        self._wake.close()
        self._changed.close()


def over_steps(asked: Mapping[str, Any]) -> Any:
    """Return the parts of a rank of which diagnoses ask; those that are not given refuse nothing, and find nothing."""
    nothing = SimpleNamespace(ask=lambda *_: None, cancel=lambda token: None, read=lambda token, offset: None)
    return SimpleNamespace(**{"profiling": nothing, "counting": nothing, "censuses": nothing, **asked})
