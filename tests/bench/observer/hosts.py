"""A run on many fake hosts, and its real head: what its observer costs, what goes between hosts, how soon it is told.

    python tests/bench/observer/hosts.py [--hosts 128] [--ranks 8] [--step-ms 100] [--seconds 10] [--windows 3]
        [--quick]

The ranks of the first host are those of `load.py`, and their observer is the real one, which is the head.  Every other
host is a real `Branch` of its own, over TCP and with the keys of the run, in one of a few processes: it says of its
ranks what the observer of that host would, once a second, and ten times a second what somebody looks at.  All on one
machine: the network costs nothing, and the fake hosts take cores from the head.

Printed are the CPU and the memory of the head's process, and the bytes of TCP between hosts for each far rank, by the
kernel's count (`tcp_info`): with nobody looking on, with a dashboard on the head's host, and with one on another host.
Then the time from the beginning of the delay of rank 17, which is on another host, to the head's word, and the time
that `ddptop pause` takes for all ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import secrets
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
import zmq

from ddptop.agent import wire
from ddptop.agent.observer.hosts.link import frames
from ddptop.agent.observer.hosts.link.branch import HEAD, Branch
from ddptop.agent.observer.hosts.link.side import Arrived, Changed
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.process import observing
from ddptop.agent.rank.records.history import History
from ddptop.agent.run import hosts, rundir
from ddptop.agent.run.files import private
from ddptop.agent.run.hosts import FarRanks
from ddptop.agent.run.rundir import Run, RunDir, identify, is_alive

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import load
from observer.heard import Heard

HOSTS_A_PROCESS: Final = 43
FRAME_S: Final = 0.25
"""Seconds between two frames of a rank that somebody looks at."""
_PARTS: Final = (0.1, 0.0, 0.2, 0.35, 0.05, 0.28, 0.02)
"""The phases of a step, in the order of `wire.PHASES`."""
MOST_RECORDS: Final = 400
"""Last records that a far rank makes for somebody who asks."""
IN_SIGHT: Final = 24
"""Ranks whose records a dashboard asks for one by one."""
TARGET_CPU: Final = "15 %"
TARGET_BYTES: Final = "2,048"
LATE_S: Final = 0.5
"""Seconds by which a far rank may be late with what it says each second before the figures say so."""
LINK_S: Final = 120.0
NAMED_S: Final = 120.0
_TURN_S: Final = 0.01
_FAR_TURN_S: Final = 0.05
_BRANCH_TURN_S: Final = 0.25
_MOST_A_TURN: Final = 4
"""Steps that a rank makes at once to catch up."""
_BRIEFLY: Final = (wire.TOPIC_RUN, wire.TOPIC_RANKS)
"""Topics of a dashboard of a large group."""
_GO: Final = "go"
_DELAYED: Final = "delayed"
_FAR_ONLOOKER: Final = "far-onlooker"


class Gate:
    """Holds a fake rank at a step, as far as a pause needs it."""

    def __init__(self) -> None:
        self.limit: int | None = None
        self._token, self._kept = "", False

    def room(self, seq: int, wanted: int) -> int:
        """Return how many of these steps a rank may make that has made `seq`."""
        return wanted if self.limit is None else max(0, min(wanted, self.limit - seq))

    def answer(self, command: wire.Command, seq: int) -> wire.Reply | None:
        """Return the reply to a command about steps; None for any other."""
        match command:
            case wire.Hold(id, token):
                self.limit, self._token = seq + 1, token
                return wire.Reply(id, True, "", self.limit)
            case wire.Commit(id, _, step):
                self.limit = step
                return wire.Reply(id, True, "", step)
            case wire.Keep(id):
                self._kept = True
                return wire.Reply(id, True)
            case wire.Resume(id):
                was, self.limit, self._kept = self.limit, None, False
                return wire.Reply(id, True, "goes on" if was is not None else "was not paused", seq)
        return None

    def holding(self, seq: int) -> wire.Holding | None:
        """Return what a rank that has made `seq` steps says of it."""
        return None if self.limit is None else wire.Holding(self.limit, self._token, seq >= self.limit, self._kept)


class HeldRank(load.FakeRank):
    """A rank of the first host."""

    def prepare(self, run: Run, rank: int, step_ns: int, slow: float, past: int) -> None:
        """Be a rank that can be paused."""
        super().prepare(run, rank, step_ns, slow, past)
        self.gate = Gate()

    def answer(self, command: wire.Command) -> wire.Reply:
        """Return the reply to a command."""
        reply = self.gate.answer(command, self.records.seq) or super().answer(command)
        self.look_at_hold()
        return reply

    def look_at_hold(self) -> None:
        """Say at once that the hold has changed."""
        if (hold := self.gate.holding(self.records.seq)) != self.hold:
            self.hold = hold
            self.live()


class FarRank(HeldRank):
    """A rank of another host, of which the fake observer there tells.

    Its steps are counted by the clock.  A record is made only where somebody wants it: the records of a thousand ranks
    would take more than a core, and ranks that are short of it say nothing of the head.
    """

    def __init__(self, host: FakeHost, run: Run, rank: int, step_ns: int, slow: float) -> None:
        self.prepare(run, rank, step_ns, slow, 0)
        self._host = host
        self._made: list[wire.Step] = []
        self._delayed_from: int | None = None
        self.topic = wire.topic_of(wire.TOPIC_STEPS, rank)
        self._topic_of_frame = wire.topic_of(wire.TOPIC_RANK, rank)
        self._framed_at = 0.0
        process = msgspec.structs.replace(self.member.process, namespace=f"of-{self.member.host}")
        self.member = msgspec.structs.replace(self.member, process=process)
        self._base_ns = step_ns
        self._delay_ns = int(step_ns * slow)
        self._number = self._summed = self._late = 0
        self._recorded = -1
        """The last step with a record; -1 as long as nobody has wanted one."""
        self._ends_at_ns = 0

    @property
    def is_looked_at(self) -> bool:
        """Say whether its records are wanted at once."""
        return self._recorded >= 0 or self._host.wants(self.topic) or self._host.wants(self._topic_of_frame)

    def go_to(self, seq: int, now_ns: int, delayed_from: int | None) -> None:
        """Have made so many steps by now, with the delay from step `delayed_from` on."""
        records = self.records
        records.delayed = delayed_from is not None and seq > delayed_from
        if delayed_from is not None:
            self._late += max(0, seq - max(records.seq, delayed_from))
        records.seq, self._ends_at_ns = seq, now_ns
        if self._host.wants(self.topic):
            self._record(delayed_from)
            recent = self._made
            if recent:
                self._host.publish(self.topic, wire.encode(wire.Steps(self.rank, tuple(recent))))
                recent.clear()
        elif self._recorded >= 0:
            self._recorded = -1
            self._made.clear()
        self._delayed_from = delayed_from
        if self._host.wants(self._topic_of_frame) and now_ns / 1e9 > self._framed_at + FRAME_S:
            self._framed_at = now_ns / 1e9
            frame = msgspec.structs.replace(self.frame, step=seq, losses=(0.5,) * 240)
            self._host.publish(self._topic_of_frame, wire.encode(frame))

    @property
    def frame(self) -> wire.RankFrame:
        """The frame that the observer of its host makes of it."""
        step_ms, member = self._base_ns / 1e6, self.member
        return wire.RankFrame(
            rank=self.rank, state="running", activity="backward", pid=member.process.pid, host=member.host,
            step=self.records.seq, step_age_s=0.05, heard_age_s=0.5, loss=0.5,
            step_ms=step_ms, phases_ms=dict(zip(wire.PHASES, (part * step_ms for part in _PARTS), strict=True)),
            allreduce_ms=wire.AllReduce(5.0, 5.0), collective_ms=wire.Calls(p50=5.0, p99=5.0), samples_per_s=320.0,
            memory_bytes=850 << 20, cpu_percent=95.0,
            device="cpu", mechanism="process-group hooks", metrics={"accuracy": 0.5},
        )  # fmt: skip

    def fill(self, command: wire.Fill) -> Iterator[bytes]:
        """Return the records that are asked for."""
        self._record(self._delayed_from)
        return iter(self.history.since(command.first_seq, command.limit))

    def _record(self, delayed_from: int | None) -> None:
        """Make the records that are missing, of the last steps at most."""
        end, records = self.records.seq, self.records
        first = max(0, end - MOST_RECORDS) if self._recorded < 0 else self._recorded
        if self._recorded < 0:
            self.history = History(self.rank)
        records.seq = first
        while records.seq < end:
            records.delayed = delayed_from is not None and records.seq >= delayed_from
            step = records.next(self._ends_at_ns - (end - records.seq - 1) * records.step_ns)
            self.history.add(step)
            if self._recorded >= 0:
                self._made.append(step)
        self._recorded = end

    def beat(self) -> None:
        """Say what the steps since the last time were like, and that it lives."""
        steps, late = self.records.seq - self._summed, self._late
        self._summed, self._late = self.records.seq, 0
        if steps > 0:
            self._number += 1
            base, delay = self._base_ns, self._delay_ns * late // steps
            quick = base - self._delay_ns
            spread = 0.04 / math.sqrt(12 * steps)
            data = int(base * min(0.12, max(0.08, self._rng.gauss(0.1, spread))))
            data += delay if self.rank == load.SLOW else 0
            forward, backward, optimizer, other = (int(base * part) for part in (0.2, 0.35, 0.05, 0.02))
            wait = max(0, quick + delay - data - forward - backward - optimizer - other)
            summary = wire.Summary(
                self.rank, self._number, self._ends_at_ns, self.records.seq, self.records.seq, steps, quick + delay,
                data, forward, backward, optimizer, wait, other, loss=0.5, samples=32, p50_ns=int(base * 0.05),
                p99_ns=int(base * 0.05), metrics={"accuracy": 0.5},
            )  # fmt: skip
            self._send(wire.TOPIC_SUMMARY, wire.encode(summary))
        self.live()

    def look_at_hold(self) -> None:
        """Say at once that the hold has changed."""
        before = self.hold
        super().look_at_hold()
        self._host.has_news |= self.hold != before

    def _send(self, topic: bytes, payload: bytes) -> None:
        self._host.note(payload)


class FakeHost:
    """The observer of a host, as the head hears it."""

    def __init__(self, context: zmq.Context[Any], listen: hosts.Listen, run: Run, ranks: range, given: Any) -> None:
        self.ranks = [FarRank(self, run, rank, int(given.step_ms * 1e6), given.slow) for rank in ranks]
        self._topics: set[bytes] = set()
        self._told: set[bytes] = set()
        self._session = -1
        self._bundle: list[msgspec.Raw] = []
        self._looks = False
        self.has_news = False
        """The hold of a rank has changed: the head is to hear that before the second is over."""
        self.bring: Callable[[FarRank], None] = lambda rank: None
        """Brings a rank where it is by now."""
        host = self.ranks[0].hello.host
        greeting = wire.HostHello(
            wire.PROTOCOL, "bench", run.run, run.run_id, host, run.world, 0, tuple(ranks), time.time_ns()
        )
        self.branch = Branch(context, listen, greeting)

    def wants(self, topic: bytes) -> bool:
        """Say whether the head subscribes to a topic."""
        return any(topic.startswith(wanted) for wanted in self._topics)

    def publish(self, topic: bytes, payload: bytes) -> None:
        """Send a message to the head."""
        self.branch.send(HEAD, frames.PUBLICATION, topic, payload)

    def note(self, payload: bytes) -> None:
        """Take in what a rank says of itself."""
        if self.wants(wire.TOPIC_BUNDLE):
            self._bundle.append(msgspec.Raw(payload))

    def tell(self) -> None:
        """Send what all ranks have said of themselves since the last time, and a row of each."""
        self.has_news = False
        if self._bundle:
            self.publish(wire.TOPIC_BUNDLE, wire.encode(wire.Bundle(tuple(self._bundle))))
            self._bundle.clear()
        if self.wants(wire.TOPIC_RANKS):
            rows = wire.Rows(time.time(), tuple(rank.frame for rank in self.ranks))
            self.publish(wire.TOPIC_RANKS, wire.encode(rows))

    def look_on(self) -> None:
        """Subscribe at the head as a dashboard on this host would."""
        if not self._looks:
            self._looks = True
            for topic in (*_BRIEFLY, *(wire.topic_of(wire.TOPIC_RANK, rank) for rank in range(IN_SIGHT))):
                self.branch.send(HEAD, frames.SUBSCRIBE, topic)

    def hear(self) -> None:
        """Take in what the head has sent."""
        for each in self.branch.turn():
            if isinstance(each, Arrived):
                self._arrived(*each)
            elif isinstance(each, Changed):
                self._changed(each.peer)

    def _changed(self, peer: bytes) -> None:
        head = self.branch.head
        if head is None or not head.is_linked or head.session == self._session:
            return
        self._session = head.session
        self._topics.clear()
        for topic in (wire.TOPIC_OUTLINE, wire.TOPIC_RECORD):
            self.branch.send(HEAD, frames.SUBSCRIBE, topic)
        members = FarRanks(tuple(rank.member for rank in self.ranks))
        self.branch.send(HEAD, frames.MEMBERS, msgspec.json.encode(members))

    def _arrived(self, peer: bytes, kind: bytes, content: list[bytes]) -> None:
        if kind == frames.SUBSCRIBE:
            self._topics.add(content[0])
        elif kind == frames.UNSUBSCRIBE:
            self._topics.discard(content[0])
        elif kind == frames.COMMAND and len(content) == 3:
            asker, number, payload = content
            rank = self.ranks[int(number) - self.ranks[0].rank]
            command = wire.read_command(payload)
            self.bring(rank)
            if isinstance(command, wire.Fill):
                for part in rank.fill(command):
                    self.branch.send(HEAD, frames.ANSWER, asker, number, part)
            self.branch.send(HEAD, frames.ANSWER, asker, number, wire.encode(rank.answer(command)))
        elif kind == frames.COMMAND:
            asker, payload = content
            reply = wire.Reply(wire.read_command(payload).id, True, "")
            self.branch.send(HEAD, frames.ANSWER, asker, wire.encode(reply))


# --- the processes of the ranks


class Training:
    """The steps, the beats and the records of some ranks, each at a moment of its own."""

    def __init__(self, ranks: list[HeldRank], folder: Path) -> None:
        self._ranks = ranks
        self._folder = folder
        self._go_ns = self._delayed_ns = 0
        self._due = [index / len(ranks) for index in range(len(ranks))]
        self._began = time.monotonic()
        self._looked = 0.0
        self.beats = self.late = 0
        """Beats, and those of them that came half a second late or more."""

    def turn(self) -> None:
        """Make the steps that are due by the clock, the same on all hosts, however late a process comes to it."""
        now, now_ns = time.monotonic(), time.time_ns()
        if now > self._looked + 0.1:
            self._looked = now
            self._go_ns, self._delayed_ns = (_read_ns(self._folder / name) for name in (_GO, _DELAYED))
        if not self._go_ns:
            self._began = now
            return
        for index, rank in enumerate(self._ranks):
            if isinstance(rank, FarRank):
                if rank.is_looked_at or rank.hold is not None or now - self._began >= self._due[index]:
                    self.bring(rank, now_ns)
                    rank.look_at_hold()
                    self._beat_if_due(index, rank, now)
                continue
            whole = rank.gate.room(rank.records.seq, min(self._wanted(rank, now_ns) - rank.records.seq, _MOST_A_TURN))
            if whole > 0:
                rank.records.delayed = bool(self._delayed_ns) and rank.records.seq >= self._wanted(
                    rank, self._delayed_ns
                )
                steps = rank.train(whole, now_ns)
                for step in steps:
                    rank.history.add(step)
                rank.publish(steps)
            rank.look_at_hold()
            self._beat_if_due(index, rank, now)

    def bring(self, rank: FarRank, now_ns: int) -> None:
        """Have a rank where it is by now: its steps are counted where somebody wants to know."""
        if not self._go_ns:
            return
        made = rank.records.seq
        # Of one that is paused the clock runs on; after that it catches up.
        seq = made + rank.gate.room(made, max(0, self._wanted(rank, now_ns) - made))
        delayed = self._wanted(rank, self._delayed_ns) if self._delayed_ns else None
        rank.go_to(seq, now_ns, delayed)

    def _beat_if_due(self, index: int, rank: HeldRank, now: float) -> None:
        late = now - self._began - self._due[index]
        if late >= 0:
            self.beats += 1
            self.late += late >= LATE_S
            self._due[index] = max(self._due[index] + 1.0, now - self._began)
            rank.beat()

    def _wanted(self, rank: HeldRank, at_ns: int) -> int:
        """Return the steps that are made by then, but for pauses: after them it goes on faster for a while."""
        delayed_ns = min(self._delayed_ns or at_ns, at_ns)
        rank.records.delayed = False
        quick = rank.records.step_ns
        rank.records.delayed = True
        return int((delayed_ns - self._go_ns) / quick + (at_ns - delayed_ns) / rank.records.step_ns)


def _read_ns(path: Path) -> int:
    with contextlib.suppress(OSError):
        return int(path.read_text())
    return 0


def _write_now(path: Path) -> None:
    path.with_suffix(".new").write_text(str(time.time_ns()))
    path.with_suffix(".new").rename(path)


def until_term() -> Iterator[None]:
    """Yield again and again until TERM, or until the process that has begun all is gone."""
    over, parent = False, os.getppid()

    def leave(*_: object) -> None:
        nonlocal over
        over = True

    signal.signal(signal.SIGTERM, leave)
    while not over and os.getppid() == parent:
        yield


def be_first_host(directory: RunDir, given: Any) -> None:
    """Be the ranks of the head's host."""
    run, context = directory.read(), zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * given.ranks + 64)
    ranks = [
        HeldRank(context, directory, run, rank, int(given.step_ms * 1e6), given.slow) for rank in range(given.ranks)
    ]
    (directory.path / "ready-0").touch()
    training = Training(list(ranks), directory.path)
    for _ in until_term():
        training.turn()
        for rank in ranks:
            rank.serve()
        time.sleep(_TURN_S)
    for rank in ranks:
        rank.beat()
        rank.finish()
    time.sleep(0.5)
    context.destroy(linger=0)


def be_far_hosts(directory: RunDir, first: int, given: Any) -> None:
    """Be some of the other hosts."""
    run, context = directory.read(), zmq.Context()
    numbers = range(first, min(first + HOSTS_A_PROCESS, given.hosts))
    context.set(zmq.MAX_SOCKETS, 8 * len(numbers) + 64)
    turns = until_term()
    for _ in turns:
        listen = hosts.read_listen(directory.path, hosts.LISTEN)
        if listen is not None:
            break
        time.sleep(0.1)
    else:
        return
    fakes = [
        FakeHost(context, listen, run, range(number * given.ranks, (number + 1) * given.ranks), given)
        for number in numbers
    ]
    training = Training([rank for fake in fakes for rank in fake.ranks], directory.path)
    for fake in fakes:
        fake.bring = lambda rank: training.bring(rank, time.time_ns())
    (directory.path / f"ready-{first}").touch()
    traffic, told, trained, looked = directory.path / f"traffic-{first}", 0.0, 0.0, 0.0
    poller = zmq.Poller()
    for fake in fakes:
        for socket_ in fake.branch.sockets:
            poller.register(socket_, zmq.POLLIN)
    for _ in turns:
        ready = dict(poller.poll(int(_FAR_TURN_S * 1000)))
        now = time.monotonic()
        is_due = now > looked + _BRANCH_TURN_S
        looked = now if is_due else looked
        for fake in fakes if is_due or ready else ():
            if is_due or any(each in ready for each in fake.branch.sockets):
                fake.hear()
        if now > trained + _FAR_TURN_S:
            trained = now
            training.turn()
        for fake in fakes:
            if fake.has_news:
                fake.tell()
        if now > told + 1.0:
            told = now
            for fake in fakes:
                fake.tell()
            linked = sum(fake.branch.is_linked for fake in fakes)
            content = {
                "linked": linked, "bytes": traffic_bytes(), "at": time.monotonic(), "cpu": time.process_time(),
                "beats": training.beats, "late": training.late,
            }  # fmt: skip
            traffic.with_suffix(".new").write_text(json.dumps(content))
            traffic.with_suffix(".new").rename(traffic)
            if first == 1 and (directory.path / _FAR_ONLOOKER).exists():
                fakes[0].look_on()
    for fake in fakes:
        fake.branch.close()
    context.destroy(linger=0)


def traffic_bytes() -> int:
    """Return the bytes that the TCP connections of this process have sent and received, by the kernel."""
    total = 0
    for connection in psutil.Process().net_connections("tcp"):
        if connection.status != psutil.CONN_ESTABLISHED or connection.fd < 0:
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as copy:
            # struct tcp_info, linux/tcp.h: tcpi_bytes_acked and tcpi_bytes_received follow 8 + 24 * 4 + 2 * 8 bytes.
            info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            total += sum(struct.unpack_from("=QQ", info, 120))
    return total


# --- the measurement


class Group:
    """The run, its head, and the processes of the fake hosts."""

    def __init__(self, directory: RunDir, given: Any) -> None:
        self.directory = directory
        self._given = given
        self.head = psutil.Process()

    def find_head(self) -> None:
        """Take note of the observer."""
        observer = self.directory.read().observer
        assert observer is not None, "the record names no observer"
        self.head = psutil.Process(observer.pid)

    def told(self, since: float = 0.0) -> list[dict[str, Any]]:
        """Return what the processes of the fake hosts have written last, each of them after `since`."""
        while min((found := self._reports()), key=lambda each: each["at"])["at"] < since:
            time.sleep(0.1)
        return found

    def _reports(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.directory.path.glob("traffic-*[0-9]"))]

    def linked(self) -> int:
        """Return how many hosts say that they are linked."""
        return sum(each["linked"] for each in self._reports())

    def cpu(self, windows: int, seconds: float) -> list[float]:
        """Return the percentages of a core that the head has used in each window, sorted."""
        found = []
        for _ in range(windows):
            spent, began = sum(self.head.cpu_times()[:2]), time.monotonic()
            time.sleep(seconds)
            found.append(100 * (sum(self.head.cpu_times()[:2]) - spent) / (time.monotonic() - began))
        return sorted(found)

    def measure(self, name: str) -> None:
        """Print a row on the present state."""
        given = self._given
        before = self.told(time.monotonic())
        shares = self.cpu(given.windows, given.seconds)
        after = self.told(time.monotonic())
        far = given.ranks * (given.hosts - 1)
        rate = sum(
            (new["bytes"] - old["bytes"]) / (new["at"] - old["at"]) for old, new in zip(before, after, strict=True)
        )
        memory = self.head.memory_info().rss / 2**20
        spent, beats, late = (
            sum(new[name] - old[name] for old, new in zip(before, after, strict=True))
            for name in ("cpu", "beats", "late")
        )
        wall = max(new["at"] - old["at"] for old, new in zip(before, after, strict=True))
        print(
            f"| {name} | {statistics.median(shares):.1f} % ({shares[0]:.1f} to {shares[-1]:.1f}) | {memory:.0f} MiB "
            f"| {rate / far:,.0f} | {self.linked()} of {given.hosts - 1} "
            f"| {100 * spent / wall:.0f} %, {100 * late / max(1, beats):.1f} % of {beats / wall / far:.2f}/s "
            f"| {os.getloadavg()[0]:.0f} |",
            flush=True,
        )


@contextlib.contextmanager
def started(given: Any) -> Iterator[Group]:
    """Start the hosts and the head, and end them with the block."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    world = given.hosts * given.ranks
    with tempfile.TemporaryDirectory(prefix="dh-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ |= {rundir.BASE_VARIABLE: folder}
        run = Run(
            run=f"hosts-{secrets.token_hex(3)}", run_id=secrets.token_hex(8), program="load", arguments=(),
            world=world, backend="gloo", device="cpu", created_at_ns=time.time_ns(), launched=False,
            torchrun=identify(os.getpid()), owner=os.getuid(), local_world=given.ranks, nodes=given.hosts, node=0,
        )  # fmt: skip
        directory = rundir.create(run)
        # As the agents of its ranks write it: the observer has nothing of their environment.
        (directory.path / "hosts").mkdir(mode=0o700)
        private.replace(directory.path / "hosts" / "meeting.json", msgspec.json.encode({"master": "127.0.0.1"}))
        environment = {**os.environ, rundir.MARKER: run.run_id, rundir.DIRECTORY_VARIABLE: str(directory.path)}
        group, processes = Group(directory, given), []
        try:
            for first in (0, *range(1, given.hosts, HOSTS_A_PROCESS)):
                command = [sys.executable, __file__, *sys.argv[1:], "--as", run.run, "--from", str(first)]
                processes.append(subprocess.Popen(command, env=environment))
            wait((directory.path / "ready-0").exists, "the ranks of the first host", processes)
            faults = Faults()
            observing.ensure(directory, 0, faults)
            if faults.count:
                raise SystemExit(f"hosts.py: {faults.last}")
            wait(lambda: is_alive(directory.read().observer), "the observer", processes)
            group.find_head()
            began = time.monotonic()
            wait(lambda: group.linked() == given.hosts - 1, "all links", processes)
            _write_now(directory.path / _GO)
            print(f"{given.hosts:,} hosts linked {time.monotonic() - began:.1f} s after the start of the head")
            yield group
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
            observer, deadline = directory.read().observer, time.monotonic() + load.END_S
            while is_alive(observer) and time.monotonic() < deadline:
                time.sleep(0.1)
            if observer is not None and is_alive(observer):
                print("the head did not end by itself", file=sys.stderr)
                os.kill(observer.pid, signal.SIGKILL)


def wait(condition: Any, what: str, processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + LINK_S
    while not condition():
        if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
            raise SystemExit(f"hosts.py: {what} did not come up within {LINK_S:.0f} s")
        time.sleep(0.1)


@contextlib.contextmanager
def onlooker(directory: RunDir) -> Iterator[None]:
    """Subscribe as a dashboard on the head's host does; a thread of ZeroMQ's takes in and drops what comes."""
    context: zmq.Context[Any] = zmq.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.CONFLATE, 1)
    for topic in (*_BRIEFLY, *(wire.topic_of(wire.TOPIC_RANK, rank) for rank in range(IN_SIGHT))):
        subscriber.subscribe(topic)
    subscriber.connect(directory.address("observer", "pub"))
    try:
        yield
    finally:
        context.destroy(linger=0)


def named_after(group: Group) -> float | None:
    """Delay rank 17 from now on; return the seconds until the head names it, None where it does not."""
    heard = Heard(group.directory)
    try:
        accused = sum(word.first is not None for word in heard.words)
        _write_now(group.directory.path / _DELAYED)
        began = time.time()
        word = heard.wait(lambda word: word.first is not None and word.first.rank == load.SLOW, NAMED_S)
    finally:
        heard.close()
    if word is None or word.first is None:
        print(f"rank {load.SLOW} was not named within {NAMED_S:.0f} s; {accused} words accused before")
        return None
    print(f"{word.at - began:.1f} s: {word.first.text}", flush=True)
    return word.at - began


def pauses(directory: RunDir, times: int) -> list[float]:
    """Return the milliseconds that each pause of all ranks took, by its own word."""
    ddptop = (sys.executable, "-m", "ddptop.tui.cli.main")
    found = []
    for _ in range(times):
        for verb in ("pause", "resume"):
            done = subprocess.run([*ddptop, verb, directory.name], capture_output=True, text=True, check=False)
            if verb == "pause":
                took = re.search(r"held at step [\d,]+ in ([\d,]+) ms", done.stdout)
                if took is None:
                    print(f"pause: exit code {done.returncode}: {(done.stdout + done.stderr)[-300:]}", flush=True)
                else:
                    found.append(float(took[1].replace(",", "")))
    return sorted(found)


def measure(given: Any) -> None:
    """Start all, and print what is found."""
    with started(given) as group:
        time.sleep(given.settle)
        far = f"{given.hosts:,} hosts of {given.ranks} ranks"
        print(
            f"| {far} | CPU of one core | memory | bytes/s a far rank | linked "
            "| CPU of the fakes, late of what each says | load |\n|---|---|---|---|---|---|---|",
            flush=True,
        )
        group.measure("nobody looks on")
        with onlooker(group.directory):
            time.sleep(2)
            group.measure("a dashboard on the head's host")
        (group.directory.path / _FAR_ONLOOKER).touch()
        time.sleep(2)
        group.measure("a dashboard on another host")
        print(f"| targets | {TARGET_CPU} | | {TARGET_BYTES} (nobody looks on) | all | , 0 % of 1/s | |", flush=True)
        named = named_after(group)
        paused = pauses(group.directory, given.pauses)
        last = f"{statistics.median(paused):.0f} ms ({paused[0]:.0f} to {paused[-1]:.0f})" if paused else "never"
        print(f"| slow rank on another host: named after | {'never' if named is None else f'{named:.1f} s'} |")
        print(f"| all {given.hosts * given.ranks:,} ranks paused after | {last}, {len(paused)} of {given.pauses} |")
        assert is_alive(group.directory.read().observer), "the head has ended"


def main() -> None:
    """Measure, or be some of the hosts."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--hosts", type=int, default=128)
    options.add_argument("--ranks", type=int, default=8, help="of each host")
    options.add_argument("--step-ms", type=float, default=100.0)
    options.add_argument("--slow", type=float, default=0.22, help="the delay of rank 17, as a share of the step")
    options.add_argument("--seconds", type=float, default=10.0, help="length of a window")
    options.add_argument("--windows", type=int, default=3)
    options.add_argument("--settle", type=float, default=20.0)
    options.add_argument("--pauses", type=int, default=5)
    options.add_argument("--quick", action="store_true", help="twelve hosts, a few seconds: does it work?")
    options.add_argument("--as", dest="name", help=argparse.SUPPRESS)
    options.add_argument("--from", dest="first", type=int, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.quick:
        given.hosts, given.seconds, given.windows, given.settle, given.pauses = 12, 2.0, 2, 5.0, 2
    load.allow_files()
    if given.name is None:
        measure(given)
        return
    directory = RunDir(rundir.base() / given.name)
    if given.first:
        be_far_hosts(directory, given.first, given)
    else:
        be_first_host(directory, given)


if __name__ == "__main__":
    main()
