"""All hosts carry out the decisions of the head: the same ones, in the same order, whatever becomes of the links."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ddptop.agent import wire
from ddptop.agent.observer.orders import far
from ddptop.agent.observer.orders.deciding import Deciding
from ddptop.agent.observer.orders.mirror import Received, Sent
from ddptop.agent.rank.commands.follower import Follower
from ddptop.agent.rank.commands.gate import Gate, GateError
from ddptop.agent.rank.faults import Faults
from ddptop.agent.run import hosts
from ddptop.agent.run.decisions import Decisions
from ddptop.agent.run.hosts import FarRanks
from ddptop.agent.run.rundir import Member, Process, Run, RunDir

LEASE_S = 4.0
BRANCHES = st.integers(1, 2)
ANY = st.integers(0, 2)


class Observed:
    """A run on several hosts, which has observers."""

    def is_over_hosts(self) -> bool:
        """Say so."""
        return True

    def is_deserted(self) -> bool:
        """Say no."""
        return False


class Rank:
    """A rank that writes down what it carries out."""

    def __init__(self, directory: RunDir, decisions: Decisions, clock: Callable[[], float]) -> None:
        self.gate = Gate(clock)
        self.faults = Faults()
        self.carried_out: list[tuple[int, bytes]] = []
        self.follower = Follower(self.gate, decisions, self.faults, Observed())
        follow = self.follower._follow

        def noted(decision: wire.Command) -> None:
            self.carried_out.append((self.follower._seen, wire.encode(decision)))
            follow(decision)

        self.follower._follow = noted  # type: ignore[method-assign]

    def passes(self) -> None:
        """Do what the agent and the training thread do as time goes."""
        self.follower.catch_up()
        with self.gate.lock:
            self.gate._lapse()


class Host:
    """A host with its directory, its rank and its side of the link; a `FarHosts`."""

    def __init__(self, number: int, folder: Path, machine: Hosts) -> None:
        self.number = number
        folder.mkdir(mode=0o700)
        for name in ("ranks", "logs"):
            (folder / name).mkdir()
        self.directory = RunDir(folder)
        self.directory.write(Run(folder.name, "id", "p", (), 3, None, None, 1, False, local_world=1))
        member = Member(number, 0, 3, Process(1, 1.0, "b"), f"node{number}", 0, "", "", None)
        self.directory.write_member(member)
        hosts.write_far(folder, FarRanks())
        self.decisions = Decisions(folder)
        self.rank = Rank(self.directory, self.decisions, machine.clock)
        self.linked = number == 0
        self.up: deque[tuple[object, ...]] = deque()
        self.down: deque[tuple[object, ...]] = deque()
        self.machine = machine
        self.deciding = Deciding(self.directory, self, self.reply, machine.clock)
        self.received = Received(self.decisions, lambda serial, content: self.send(self.up, ("K", serial, content)))
        self.replies: list[wire.Reply] = []

    @property
    def role(self) -> str:
        """Its part."""
        if self.number == 0:
            return "head"
        return "branch" if self.linked else "alone"

    def hosts(self) -> tuple[wire.HostState, ...]:
        """Return, for the head, which branches are heard."""
        if self.number:
            return ()
        return tuple(
            wire.HostState(f"node{each.number}", "linked" if each.linked else "silent", (each.number,))
            for each in self.machine.hosts[1:]
        )

    def send(self, queue: deque[tuple[object, ...]], message: tuple[object, ...]) -> bool:
        """Put a message on the link."""
        if self.linked:
            queue.append(message)
        return self.linked

    def ask(self, host: str, command: wire.Command, timeout_s: float, then: far.Then) -> None:
        """Ask the head."""
        assert host == far.HEAD
        if not self.send(self.up, ("C", command, then)):
            then(None)

    def reply(self, sender: bytes, reply: wire.Reply) -> None:
        """Answer, as the relay of the head does: what was decided goes first."""
        self.machine.sent.turn()
        if far.is_from_afar(sender):
            branch = self.machine.hosts[int(sender.removeprefix(far.LINK))]
            branch.send(branch.down, ("A", reply, branch.waiting.pop(0)))
        else:
            self.replies.append(reply)

    waiting: list[far.Then]


class Hosts(RuleBasedStateMachine):
    """Three hosts of a rank each."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="dm-", dir="/tmp"))
        self.now = 100.0
        self.hosts = [Host(number, self.folder / f"n{number}", self) for number in range(3)]
        for host in self.hosts:
            host.waiting = []
        self.sent = Sent(self.hosts[0].decisions, self._send_down, self.clock)
        self.tokens = 0
        self.opened_alone: list[int] = []

    def clock(self) -> float:
        """Return the time of all."""
        return self.now

    def _send_down(self, peer: bytes, serial: int, content: bytes) -> bool:
        host = self.hosts[int(peer)]
        return host.send(host.down, ("K", serial, content))

    def _watched(self, host: Host, act: Callable[[], object]) -> None:
        """Do something on a branch, and note where its rank was let go without a decision."""
        before, known = host.rank.gate.limit, len(host.rank.carried_out)
        act()
        if before is not None and host.rank.gate.limit is None and len(host.rank.carried_out) == known:
            self.opened_alone.append(host.number)

    @rule()
    def hold(self) -> None:
        """A controller asks all ranks to promise, as far as they can be reached."""
        self.tokens += 1
        for host in self.hosts:
            if host.number == 0 or host.linked:
                host.rank.follower.start_afresh()
                with contextlib.suppress(GateError):
                    host.rank.gate.promise(f"t{self.tokens}", LEASE_S)

    @rule(where=ANY, kind=st.sampled_from(["keep", "resume", "advance", "lapse"]))
    def decide(self, where: int, kind: str) -> None:
        """A controller on some host decides."""
        host, token = self.hosts[where], f"t{self.tokens}"
        serial = host.decisions.newest() + 1
        decisions: dict[str, wire.Command] = {
            "keep": wire.Keep(0, token, 7, serial), "resume": wire.Resume(0, serial),
            "advance": wire.Advance(0, 9, serial), "lapse": wire.Lapse(0, token),
        }  # fmt: skip
        decision = decisions[kind]
        if where == 0:
            host.decisions.decide(serial, wire.encode(decision))
        else:
            refusal = host.deciding.answer(b"asker", wire.Decide(1, serial, wire.encode(decision)))
            assert refusal is None or not host.linked

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0]))
    def time_goes(self, seconds: float) -> None:
        """Time goes, and leases run out."""
        self.now += seconds
        for host in self.hosts:
            self._watched(host, host.rank.passes)

    @rule()
    def turn(self) -> None:
        """The observers have their turn."""
        newest = self.hosts[0].decisions.newest()
        self.hosts[0].deciding.turn()
        if self.hosts[0].decisions.newest() > newest:
            assert all(host.linked for host in self.hosts), "a hold lapsed that not all could be told of"
        self.sent.turn()
        for host in self.hosts[1:]:
            host.deciding.turn()

    @rule(which=BRANCHES)
    def up(self, which: int) -> None:
        """A message arrives at the head."""
        host = self.hosts[which]
        if not host.up:
            return
        kind, *rest = host.up.popleft()
        if kind == "K":
            self.sent.heard(b"%d" % which, rest[0])  # type: ignore[arg-type]
        else:
            command, then = rest
            assert isinstance(command, wire.Decide)
            host.waiting.append(then)  # type: ignore[arg-type]
            sender = far.LINK + b"%d" % which
            refusal = self.hosts[0].deciding.answer(sender, wire.read_command(wire.encode(command)))  # type: ignore[arg-type]
            if refusal is not None:
                self.hosts[0].reply(sender, wire.Reply(command.id, False, refusal))

    @rule(which=BRANCHES)
    def down(self, which: int) -> None:
        """A message arrives at a branch."""
        host = self.hosts[which]
        if not host.down:
            return
        kind, *rest = host.down.popleft()
        if kind == "K":
            host.received.take(*rest)  # type: ignore[arg-type]
            self._watched(host, host.rank.follower.catch_up)
        else:
            reply, then = rest
            then(reply)  # type: ignore[operator]

    @rule(which=BRANCHES)
    @precondition(lambda self: any(host.linked for host in self.hosts[1:]))
    def cut(self, which: int) -> None:
        """The cable is cut, and all that was under way is lost."""
        host = self.hosts[which]
        host.linked = False
        for message in host.up:
            if message[0] == "C":
                message[2](None)  # type: ignore[operator]
        for message in host.down:
            if message[0] == "A":
                message[2](None)  # type: ignore[operator]
        host.up.clear()
        host.down.clear()
        host.waiting.clear()

    @rule(which=BRANCHES)
    def mend(self, which: int) -> None:
        """The link is made, again."""
        host = self.hosts[which]
        if not host.linked:
            host.linked = True
            self.sent.meet(b"%d" % which)
            host.received.begin()

    @rule(which=BRANCHES)
    def each_second(self, which: int) -> None:
        """A branch says once more what it has."""
        if self.hosts[which].linked:
            self.hosts[which].received.begin()

    @invariant()
    def copies_are_beginnings_of_the_decisions(self) -> None:
        """A branch has the decisions of the head up to some number, and no other."""
        made = self._all(self.hosts[0])
        for host in self.hosts[1:]:
            assert self._all(host) == made[: len(self._all(host))]
            assert host.decisions.newest() == len(self._all(host))

    @invariant()
    def ranks_carry_out_what_was_decided(self) -> None:
        """Each rank has carried out decisions of the head alone, in their order and each once."""
        made = self._all(self.hosts[0])
        for host in self.hosts:
            numbers = [number for number, _ in host.rank.carried_out]
            assert numbers == sorted(set(numbers))
            assert all(made[number - 1] == content for number, content in host.rank.carried_out)

    @invariant()
    def no_host_goes_on_alone(self) -> None:
        """A rank is let go by a decision and by nothing else."""
        assert not self.opened_alone

    def _all(self, host: Host) -> list[bytes]:
        found: list[bytes] = []
        while (content := host.decisions.read(len(found) + 1)) is not None:
            found.append(content)
        return found

    def teardown(self) -> None:
        """Once all links hold, all hosts come to have all decisions, and no proposal is left."""
        try:
            for number in (1, 2):
                self.mend(number)
            for _ in range(60):
                self.now += 3.0
                self.turn()
                for number in (1, 2):
                    self.each_second(number)
                    while self.hosts[number].up or self.hosts[number].down:
                        self.up(number)
                        self.down(number)
                for host in self.hosts:
                    self._watched(host, host.rank.passes)
            made = self._all(self.hosts[0])
            for host in self.hosts:
                assert self._all(host) == made
                assert host.rank.gate.limit is None or host.rank.gate.is_paused
                assert not host.decisions.proposals()
                assert not host.rank.faults.count
            self.no_host_goes_on_alone()
        finally:
            shutil.rmtree(self.folder)


TestHosts = Hosts.TestCase
TestHosts.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
