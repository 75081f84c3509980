"""Several hosts in one process: their observers' commands go from one to the other by a link that can be cut."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from ddptop.agent import wire
from ddptop.agent.observer.hosts.elsewhere import LINK, is_elsewhere
from ddptop.agent.observer.hosts.questions import Answer, OtherHosts, unanswered
from ddptop.agent.observer.service.requests import Requests
from support.values.messages import replies_of


@dataclass
class Net:
    """The hosts, the first of which is the head."""

    hosts: dict[str, Side] = field(default_factory=dict)

    def side(self, name: str, ranks: tuple[int, ...], *, linked: bool = True) -> Side:
        """Add a host."""
        made = self.hosts[name] = Side(self, wire.HostFrame(name, "linked", ranks), linked=linked)
        return made

    def close(self) -> None:
        """Close what the hosts wake each other with."""
        for each in self.hosts.values():
            each.requests.close()

    @property
    def head(self) -> str:
        """Name of the head's host."""
        return next(iter(self.hosts))


@dataclass
class Side(OtherHosts):
    """What one host knows of the others."""

    net: Net
    state: wire.HostFrame
    linked: bool = True
    """Of a branch: it has its link."""
    requests: Requests = field(default_factory=Requests)
    asked: list[tuple[str, wire.Command]] = field(default_factory=list)
    waiting: dict[int, Answer] = field(default_factory=dict)
    answers: bool = True
    """It answers what it is asked; False: it swallows all."""
    before: Callable[[], None] = lambda: None
    """Called before a command reaches this host: what the link does first."""

    @property
    def role(self) -> str:
        """Its part."""
        if self.state.host == self.net.head:
            return "head" if len(self.net.hosts) > 1 else "alone"
        return "branch" if self.linked else "alone"

    def hosts(self) -> tuple[wire.HostFrame, ...]:
        """Return the states of the others."""
        return tuple(each.state for each in self.net.hosts.values() if each is not self)

    def is_(self, state: str, **changes: object) -> None:
        """Change what the others know of this host."""
        self.state = msgspec.structs.replace(self.state, state=state, **changes)

    def ask(self, host: str, command: wire.Command, timeout_s: float) -> Answer:
        """Put a command into the other's requests."""
        self.asked.append((host, command))
        other = self.net.hosts.get(host or self.net.head)
        if other is None or not (self.linked and other.linked):
            return unanswered()
        answer: Answer = Future()
        if not other.answers:
            return answer
        number = len(other.waiting) + 1
        other.waiting[number] = answer
        other.before()
        other.requests.put(LINK + b"%d" % number, wire.read_command(wire.encode(command)))
        return answer

    def replies(self) -> list[tuple[bytes, wire.Reply]]:
        """Send the replies for other hosts, and return those for askers of this one."""
        own = []
        for sender, reply in replies_of(self.requests):
            if is_elsewhere(sender):
                answer = wire.read_answer(wire.encode(reply))
                assert isinstance(answer, wire.Reply)
                self.waiting[int(sender.removeprefix(LINK))].set_result(answer)
            else:
                own.append((sender, reply))
        return own
