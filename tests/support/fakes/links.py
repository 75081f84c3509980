"""Both sides of a link in one process, turned by the test, and a cable between them that can be cut."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import zmq

from ddptop.agent import wire
from ddptop.agent.observer.hosts.link import keys
from ddptop.agent.observer.hosts.link.addresses import Place
from ddptop.agent.observer.hosts.link.branch import Branch
from ddptop.agent.observer.hosts.link.head import Head
from ddptop.agent.observer.hosts.link.keys import Pair
from ddptop.agent.observer.hosts.link.side import Arrived, Changed, Clocks, News, Side
from ddptop.agent.run.hosts import Listen

DEADLINE_S: Final = 30.0


def hello(host: str = "node1", ranks: tuple[int, ...] = (0, 1), **fields: Any) -> wire.HostHello:
    """Return what a host says of itself."""
    given: dict[str, Any] = {
        "protocol": wire.PROTOCOL, "agent_version": "1.0", "run": "train", "run_id": "0123456789abcdef", "host": host,
        "world": 8, "ranks": ranks,
    }  # fmt: skip
    return wire.HostHello(**given | fields)


class Told:
    """What a side of a link has told."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, bytes, list[bytes]]] = []
        self.changes: list[bytes] = []
        self.events: list[str] = []

    def take(self, news: list[News]) -> None:
        """Take what it has returned."""
        for each in news:
            match each:
                case Arrived():
                    self.messages.append((each.peer, each.kind, each.frames))
                case Changed():
                    self.changes.append(each.peer)
                case _:
                    self.events.append(each.text)

    def of(self, kind: bytes) -> list[list[bytes]]:
        """Return the messages of a kind."""
        return [frames for _, each, frames in self.messages if each == kind]


def _clocks(options: dict[str, Callable[[], Any]]) -> Clocks:
    return Clocks(options.get("clock", time.monotonic), options.get("wall_ns", time.time_ns))


class Links:
    """A head, and branches that come and go."""

    def __init__(self, context: zmq.Context[Any], pairs: tuple[Pair, Pair] | None = None, **options: Any) -> None:
        self.context = context
        self.keys = pairs or keys.generate()
        self.told = Told()
        self._place = options.pop("place", Place("127.0.0.1"))
        self.head = Head(self.keys, self._place, options.pop("hello", hello()), _clocks(options))
        self._told: dict[Side, Told] = {self.head: self.told}
        self.branches: list[Branch] = []
        self.still: set[object] = set()
        """Sides that do not turn: their thread does other things."""

    def branch(self, greeting: wire.HostHello, listen: Listen | None = None, **options: Any) -> tuple[Branch, Told]:
        """Add a branch, which begins to connect."""
        told = Told()
        made = Branch(self.context, listen or self.head.listen, greeting, _clocks(options))
        self._told[made] = told
        self.branches.append(made)
        return made, told

    def succeed(self) -> None:
        """Put another head with other keys into the place of this one."""
        self.head.close()
        self.keys = keys.generate()
        self.head = Head(self.keys, self._place, hello())
        self._told[self.head] = Told()

    def linked(self, host: str = "node2", ranks: tuple[int, ...] = (2, 3)) -> tuple[Branch, Told, bytes]:
        """Add a branch and wait until it is linked; return its name at the head too."""
        made, told = self.branch(hello(host, ranks))
        self.until(lambda: made.is_linked)
        return made, told, next(name for name, peer in self.head.peers.items() if peer.host == host)

    def leave(self, branch: Branch) -> None:
        """End a branch."""
        self.branches.remove(branch)
        branch.close()

    def until(self, condition: Callable[[], object], timeout: float = DEADLINE_S) -> float:
        """Turn all sides until something is so; return the seconds that it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + timeout, f"not within {timeout:.0f} s"
            self.turn()
        return time.monotonic() - began

    def turn(self, most_s: float = 0.05) -> None:
        """Wait for something to do on any side, and let it be done."""
        every: list[Side] = [self.head, *self.branches]
        sides = [each for each in every if each not in self.still]
        poller = zmq.Poller()
        for side in sides:
            for each in side.sockets:
                poller.register(each, zmq.POLLIN)
        pause_s = min([most_s, *(side.pause_s for side in sides)])
        poller.poll(int(1000 * pause_s) + 1)
        for side in sides:
            self._told[side].take(side.turn())

    def close(self) -> None:
        """Close all sides."""
        for branch in self.branches:
            branch.close()
        self.head.close()


class Cable:
    """A port that passes all bytes on to another, until it is cut; it can record what the first who connects sends."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._there = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.recorded = b""
        self.connections = 0
        self.passed = 0
        """Bytes in both directions."""
        self._is_cut = False
        self._drops = False
        self._over = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Let no byte pass any more, in either direction, without ending a connection."""
        self._is_cut = True

    def mend(self) -> None:
        """Let bytes pass again: what was sent meanwhile comes late, as TCP sends it again."""
        self._is_cut = False

    def drop(self) -> None:
        """End all connections, as a switch that is restarted does: others can be made at once."""
        self._drops = True

    def _work(self) -> None:
        ways: dict[socket.socket, socket.socket] = {}
        first: socket.socket | None = None
        while not self._over:
            if self._is_cut:
                time.sleep(0.01)
                continue
            if self._drops:
                self._drops = False
                for each in ways:
                    each.close()
                ways.clear()
            ready, _, _ = select.select([self._listener, *ways], [], [], 0.02)
            for each in ready:
                if each is self._listener:
                    here = self._listener.accept()[0]
                    with contextlib.suppress(OSError):
                        there = socket.create_connection(self._there)
                        ways[here], ways[there] = there, here
                        self.connections += 1
                        first = first or here
                    continue
                if each not in ways:
                    continue
                try:
                    content = each.recv(1 << 16)
                    ways[each].sendall(content)
                except OSError:
                    content = b""
                self.passed += len(content)
                if each is first:
                    self.recorded += content
                if not content:
                    other = ways.pop(each)
                    ways.pop(other, None)
                    each.close()
                    other.close()
        for each in ways:
            each.close()

    def close(self) -> None:
        """End all connections."""
        self._over = True
        self._thread.join()
        self._listener.close()


@contextlib.contextmanager
def links(**options: Any) -> Iterator[Links]:
    """Make a head on the loopback interface, and close it and its branches with the block."""
    context: zmq.Context[Any] = zmq.Context()
    made = Links(context, **options)
    try:
        yield made
    finally:
        made.close()
        context.term()


@contextlib.contextmanager
def cable(links: Links) -> Iterator[tuple[Cable, Listen]]:
    """Yield a cable to the head of these links, and where a branch finds its other end."""
    made = Cable(links.head.listen.addresses[0])
    try:
        yield made, msgspec.structs.replace(links.head.listen, addresses=(made.endpoint,))
    finally:
        made.close()
