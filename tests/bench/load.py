"""Fake ranks that speak the real wire protocol, any number from a few processes, and the real observer of their run.

    python tests/bench/load.py --world 1024 --rate 10 [--step-ms 100] [--past 0] [--slow 0.22] [--slow-after 0]

Each of them has its own sockets, its member record in a run directory of its own name, and
sends what an agent sends: Hello to newcomers, a Beat and a Summary a second, and its step
records `--rate` times a second; it answers Fill from a real history, and Inspect with a stack.  Nobody trains.
The run is one that ddptop did not launch: this process is in the place of torchrun, and the observer is started as an
agent starts it, and ends itself when the ranks have ended.  `started` does all that for a benchmark.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import secrets
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import zmq

from ddptop.agent import wire
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.process import observing
from ddptop.agent.rank.records.digest import Digest
from ddptop.agent.rank.records.history import History
from ddptop.agent.record import recording
from ddptop.agent.record.recording import Row
from ddptop.agent.record.ring import Ring
from ddptop.agent.run import rundir
from ddptop.agent.run.files.private import seal
from ddptop.agent.run.rundir import Ended, Member, Process, Run, RunDir, identify, is_alive
from ddptop.agent.wire.frames import ENDED

SLOW: Final = 17
"""The rank whose data loading takes longer, in groups that are large enough to have it."""
RANKS_A_PROCESS: Final = 512
BUCKETS: Final = 4
START_S: Final = 300.0
"""How long the ranks and their observer may take to come up: 4,096 ranks on a busy machine."""
END_S: Final = 120.0
VARIANTS: Final = 8
"""Ranks whose past differs: that of the others has the same numbers."""
PAST_A_ROW: Final = 64
"""Steps in a row of the recorded past."""
MADE: Final = struct.Struct("<iqqqd")
"""A step as a rank notes that it has made it: rank, number, end, wall time, loss."""


class Records:
    """The step records of one rank, one after the other."""

    def __init__(self, rank: int, world: int, step_ns: int, slow: float, seq: int = 0) -> None:
        """Begin after record `seq`; `slow` is the delay of rank `SLOW`, as a share of the delayed step."""
        self.seq = seq
        self.delayed = True
        """Whether the group has the delay now."""
        self._slow = rank == SLOW
        self._base_ns = step_ns
        self._delay_ns = int(step_ns * slow) if world > SLOW else 0
        self._rng = random.Random(rank)

    @property
    def step_ns(self) -> int:
        """Length of the step that comes next: all ranks of a group wait for the slow one."""
        return self._base_ns if self.delayed else self._base_ns - self._delay_ns

    def next(self, end_ns: int) -> wire.Step:
        """Return the record of the next step, which ends at `end_ns`."""
        self.seq += 1
        base, wall = self._base_ns, self.step_ns
        data = int(base * self._rng.uniform(0.08, 0.12)) + (self._delay_ns if self._slow and self.delayed else 0)
        forward, backward, optimizer = int(base * 0.2), int(base * 0.35), int(base * 0.05)
        other = int(base * 0.02)
        calls = tuple(
            wire.Collective("all_reduce", forward + 10_000 * index, int(base * 0.05), 1 << 22, 1)
            for index in range(BUCKETS)
        )
        return wire.Step(
            self.seq, self.seq, end_ns, wall, data, forward, backward, optimizer,
            max(0, wall - data - forward - backward - optimizer - other), other,
            2.5 / (1 + self.seq / 500) + self._rng.uniform(0, 0.1), 32, calls, {"accuracy": self._rng.random()},
        )  # fmt: skip


class FakeRank:
    """One rank's sockets and records."""

    member: Member
    """Its record."""
    hold: wire.Holding | None = None
    """Nobody holds it."""

    def __init__(
        self,
        context: zmq.Context[Any],
        directory: RunDir,
        run: Run,
        rank: int,
        step_ns: int,
        slow: float = 0.22,
        past: int = 0,
    ) -> None:
        self.prepare(run, rank, step_ns, slow, past)
        self._directory = directory
        self.pub, self.cmd = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        for socket, kind in ((self.pub, "pub"), (self.cmd, "cmd")):
            socket.linger = 0
            socket.maxmsgsize = wire.MAX_COMMAND_BYTES
            socket.bind(directory.address(rank, kind))
            seal(directory.address(rank, kind))
        self.pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.member = msgspec.structs.replace(
            self.member, pub=directory.address(rank, "pub"), cmd=directory.address(rank, "cmd")
        )
        directory.write_member(self.member)

    def prepare(self, run: Run, rank: int, step_ns: int, slow: float, past: int) -> None:
        """Be a rank without sockets."""
        self.rank = rank
        self.sent = 0
        self.records = Records(rank, run.world, step_ns, slow, past)
        self._rng = random.Random(rank)
        self._digest = Digest(rank)
        self._told: bytes | None = None
        self._topics: set[bytes] = set()
        """Topics to which somebody has subscribed."""
        self._batch: list[wire.Step] = []
        self.history = History(rank)
        self.hello = wire.Hello(
            wire.PROTOCOL, run.run, run.run_id, rank, rank % 8, run.world, os.getpid(), run.created_at_ns,
            f"node-{rank // 8:03d}", run.program, "bench", "3.11",
        )  # fmt: skip
        me = identify(os.getpid())
        assert me is not None
        self.member = Member(
            rank=rank, local_rank=rank % 8, world=run.world, process=me, host=self.hello.host, generation=0,
            pub="", cmd="", log=None,
        )  # fmt: skip

    def train(self, steps: int, end_ns: int) -> list[wire.Step]:
        """Return the records of the next steps, the last of which ends at `end_ns`."""
        made = []
        for left in range(steps - 1, -1, -1):
            step = self.records.next(end_ns - left * self.records.step_ns)
            self._digest.add(step)
            made.append(step)
        return made

    def publish(self, steps: list[wire.Step]) -> None:
        """Send records, now and with those of a whole second, each as far as somebody wants it."""
        if any(wire.TOPIC_STEPS.startswith(wanted) for wanted in self._topics):
            self._send(wire.TOPIC_STEPS, wire.encode(wire.Steps(self.rank, tuple(steps))))
        # As a rank does: not for those who subscribe to all there is.
        if wire.TOPIC_BATCH in self._topics:
            self._batch += steps

    def beat(self) -> None:
        """Send a sign of life, a summary, and the records of a second in one message."""
        if self._batch:
            self._send(wire.TOPIC_BATCH, wire.encode(wire.Steps(self.rank, tuple(self._batch))))
            self._batch.clear()
        summary = self._digest.close()
        if summary is not None:
            self._told = wire.encode(summary)
            self._send(wire.TOPIC_SUMMARY, self._told)
        self.live()

    def live(self) -> None:
        """Send a sign of life."""
        now = time.time_ns()
        self._send(
            wire.TOPIC_BEAT,
            wire.encode(
                wire.Beat(
                    self.rank,
                    now,
                    "running",
                    "backward",
                    self.records.seq,
                    now,
                    self.records.seq,
                    memory_bytes=self._rng.randrange(800, 900) << 20,
                    cpu_percent=95.0,
                    device="cpu",
                    backend="gloo",
                    total_steps=1_000_000,
                    mechanism="process-group hooks",
                    hold=self.hold,
                )
            ),
        )

    def serve(self) -> None:
        """Greet newcomers, answer commands."""
        try:
            while True:
                message = self.pub.recv(zmq.NOBLOCK)
                if message[:1] != b"\x01":
                    self._topics.discard(message[1:])
                else:
                    self._topics.add(message[1:])
                    self._send(wire.TOPIC_HELLO, wire.encode(self.hello))
                    if self._told is not None:
                        self._send(wire.TOPIC_SUMMARY, self._told)
        except zmq.Again:
            pass
        try:
            while True:
                peer, *frames = self.cmd.recv_multipart(zmq.NOBLOCK)
                try:
                    (payload,) = frames
                    command = wire.read_command(payload)
                except (ValueError, wire.Unreadable):
                    continue
                if isinstance(command, wire.Fill):
                    for answer in self.history.since(command.first_seq, command.limit):
                        self.cmd.send_multipart([peer, answer])
                self.cmd.send_multipart([peer, wire.encode(self.answer(command))])
        except zmq.Again:
            pass

    def answer(self, command: wire.Command) -> wire.Reply:
        """Return the reply to a command."""
        place = self.inspection() if isinstance(command, wire.Inspect) else None
        return wire.Reply(command.id, True, "", self.records.seq, inspection=place)

    def inspection(self) -> wire.Inspection:
        """Return where it stands: in an all-reduce, but for rank `SLOW`, which never comes; some threads are idle."""
        late = self.rank == SLOW
        frames = (
            wire.Frame("main", "train.py", 31 if late else 40, "time.sleep(3600)" if late else "average(model)"),
            wire.Frame("<module>", "train.py", 52, "main()"),
            *(wire.Frame(f"f{depth}", "torch/nn/modules/module.py", depth, library=True) for depth in range(18)),
        )
        idle = tuple(wire.Thread(f"pool-{number}", frames[2:], native_id=number) for number in range(12))
        call = wire.OpenCall("all_reduce", "0", self.records.seq + 1, 4 << 20, 10**9, blocking=True)
        past = tuple(wire.PastCall("all_reduce", 4 << 20) for _ in range(16))
        return wire.Inspection(
            self.rank, time.time_ns(), "agent", os.getpid(), "running", "backward", self.records.seq,
            (wire.Thread("MainThread", frames, main=True), *idle), open=() if late else (call,),
            groups=(wire.GroupCalls("0", self.records.seq + 1 - late, recent=past),), observed=True,
        )  # fmt: skip

    def finish(self) -> None:
        """Note the end of its script."""
        end = Ended(time.time_ns(), 0, step=self.records.seq, pid=os.getpid())
        self._directory.write_member(msgspec.structs.replace(self.member, ended=end))

    def _send(self, topic: bytes, payload: bytes) -> None:
        self.pub.send_multipart([topic, payload])
        self.sent += 1


def work(directory: RunDir, ranks: range, options: argparse.Namespace) -> None:
    """Be these ranks until the time is over, or until TERM."""
    over = False

    def leave(*_: object) -> None:
        nonlocal over
        over = True

    signal.signal(signal.SIGTERM, leave)
    run = directory.read()
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * len(ranks) + 64)
    step_ns = int(options.step_ms * 1e6)
    fakes = [FakeRank(context, directory, run, rank, step_ns, options.slow, options.past) for rank in ranks]
    for fake in fakes:
        fake.beat()
    (directory.path / f"ready-{ranks.start}").touch()
    while not over and not (directory.path / "go").exists():
        for fake in fakes:
            fake.serve()
        time.sleep(0.02)
    slow_at_ns = time.time_ns() if over else slow_since(directory, options)
    made = -1
    if options.made:
        made = os.open(Path(options.made) / f"made-{ranks.start}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    # Every rank has its own moment within a period, as on a real machine.
    period = 1 / options.rate if options.rate else float("inf")
    due = [(index / len(fakes)) * period if options.rate else period for index in range(len(fakes))]
    beat_due = [index / len(fakes) for index in range(len(fakes))]
    owed = [0.0] * len(fakes)
    start = time.monotonic()
    served = 0.0
    while not over and (now := time.monotonic() - start) < options.seconds:
        delayed = time.time_ns() >= slow_at_ns
        for index, fake in enumerate(fakes):
            if now >= due[index]:
                due[index] += period
                fake.records.delayed = delayed
                owed[index] += period * 1e9 / fake.records.step_ns
                whole = int(owed[index])
                if whole:
                    owed[index] -= whole
                    steps = fake.train(whole, time.time_ns())
                    if options.keep:
                        for step in steps:
                            fake.history.add(step)
                    if made >= 0:
                        # Before it is sent: nobody can have a step that is not noted here.
                        os.write(made, b"".join(_made(fake.rank, step) for step in steps))
                    fake.publish(steps)
            if now >= beat_due[index]:
                beat_due[index] += 1.0
                fake.beat()
        if now - served > 0.02:
            served = now
            for fake in fakes:
                fake.serve()
        time.sleep(0.005)
    (directory.path / f"sent-{ranks.start}").write_text(str(sum(fake.sent for fake in fakes)))
    if made >= 0:
        os.close(made)
    for fake in fakes:
        fake.beat()
        fake.finish()
    # What was sent last is still on its way.
    time.sleep(0.5)
    context.destroy(linger=0)


def _made(rank: int, step: wire.Step) -> bytes:
    return MADE.pack(rank, step.seq, step.end_at_ns, step.wall_ns, step.loss or 0.0)


def slow_since(directory: RunDir, options: argparse.Namespace) -> int:
    """Return the time in nanoseconds from which on rank `SLOW` is slow: 0 where it always was."""
    if not options.slow_after:
        return 0
    return int((directory.path / "go").read_text()) + int(options.slow_after * 1e9)


def record_past(directory: RunDir, run: Run, options: argparse.Namespace) -> None:
    """Write into the recording what an observer has written that was there from the beginning: steps and history."""
    step_ns = int(options.step_ms * 1e6)
    kinds = [*range(min(VARIANTS, run.world)), *([SLOW] if run.world > SLOW else [])]
    makers = {rank: Records(rank, run.world, step_ns, options.slow) for rank in kinds}
    for maker in makers.values():
        maker.delayed = not options.slow_after
    kind_of = [SLOW if rank == SLOW else rank % VARIANTS for rank in range(run.world)]
    long, end_ns = makers[0].step_ns, time.time_ns()
    ring = Ring(directory.database, run.world)
    _, history = ring.open(run.run_bytes)
    for first in range(1, options.past + 1, PAST_A_ROW):
        numbers = range(first, min(first + PAST_A_ROW, options.past + 1))
        made = {
            rank: [maker.next(end_ns - (options.past - number) * long) for number in numbers]
            for rank, maker in makers.items()
        }
        encoded = {rank: tuple(msgspec.Raw(wire.encode(step)) for step in steps) for rank, steps in made.items()}
        rows: list[Row] = []
        for rank, kind in enumerate(kind_of):
            payload = wire.encode(wire.EncodedSteps(rank, encoded[kind]))
            rows.append(("INSERT INTO steps VALUES(?, ?, ?, ?, ?)", (rank, 0, numbers[0], numbers[-1], payload)))
            history.rows.steps(rank, made[kind], 0)
        history.settle()
        ring.write(rows, run.run_bytes)
        while not ring.limit_to(run.run_bytes, 1.0):
            pass
    ring.close()


def lead(options: argparse.Namespace) -> int:
    """Make the run, be the launcher of its ranks, and wait for their end."""
    parent = os.getppid()
    name = f"load-{secrets.token_hex(3)}"
    run = Run(
        run=name, run_id=secrets.token_hex(8), program="load", arguments=(), world=options.world, backend="gloo",
        device="cpu", created_at_ns=time.time_ns() - int(options.past * options.step_ms * 1e6), launched=False,
        torchrun=identify(os.getpid()), owner=os.getuid(), local_world=options.world,
    )  # fmt: skip
    if options.run_mib is not None:
        run = msgspec.structs.replace(run, run_bytes=options.run_mib << 20)
    directory = rundir.create(run)
    if options.past:
        record_past(directory, run, options)
    environment = {**os.environ, rundir.MARKER: run.run_id, rundir.DIRECTORY_VARIABLE: str(directory.path)}
    processes: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for first in range(0, options.world, RANKS_A_PROCESS):
            command = [sys.executable, __file__, *sys.argv[1:], "--as", name, "--from", str(first)]
            processes.append(subprocess.Popen(command, env=environment))
        _wait(lambda: len(list(directory.path.glob("ready-*"))) == len(processes), "the fake ranks", processes)
        # What the agent of local rank 0 does once its record is there.
        faults = Faults()
        observing.ensure(directory, 0, faults)
        if faults.count:
            raise SystemExit(f"load.py: {faults.last}")
        _wait(lambda: is_alive(directory.read().observer), "the observer", processes)
        _wait(Path(directory.address("observer", "cmd").removeprefix("ipc://")).exists, "its socket", processes)
        # Each process reads it whole: it comes under its name at once.
        (directory.path / ".go").write_text(str(time.time_ns()))
        (directory.path / ".go").rename(directory.path / "go")
        print(f"ddptop attach {directory.name}", flush=True)
        while any(process.poll() is None for process in processes):
            time.sleep(0.2)
            if options.tied and os.getppid() != parent:
                return 1  # the benchmark was killed
        return max(process.wait() for process in processes)
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait()


def _wait(condition: Callable[[], object], what: str, processes: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
            raise SystemExit(f"load.py: {what} did not come up; see the logs of the run")
        time.sleep(0.05)


class Load:
    """A run of fake ranks that was started for a benchmark."""

    def __init__(self, directory: RunDir, leader: subprocess.Popen[str]) -> None:
        self.directory = directory
        self.name = directory.name
        self.leader = leader

    @property
    def observer(self) -> Process:
        """The process of the run's observer, by the record."""
        found = self.directory.read().observer
        assert found is not None, "the record names no observer"
        return found

    @property
    def began_ns(self) -> int:
        """The time at which the ranks began to train."""
        return int((self.directory.path / "go").read_text())

    def finish(self) -> str:
        """End the ranks, wait until the end is recorded, and return the state in the record."""
        self.leader.send_signal(signal.SIGTERM)
        self.leader.wait(END_S)
        deadline = time.monotonic() + END_S
        while (state := self.directory.read().state) not in ENDED:
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.name}: its end was not recorded within {END_S:.0f} s")
            time.sleep(0.1)
        return state

    def close(self) -> None:
        """End the ranks, and wait for the observer, which ends by itself."""
        self.leader.send_signal(signal.SIGTERM)
        try:
            self.leader.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.leader.pid, signal.SIGKILL)
            self.leader.wait()
        observer, deadline = self.directory.read().observer, time.monotonic() + END_S
        while is_alive(observer) and time.monotonic() < deadline:
            time.sleep(0.1)
        if observer is not None and is_alive(observer):
            print(f"{self.name}: its observer did not end within {END_S:.0f} s", file=sys.stderr)
            os.kill(observer.pid, signal.SIGKILL)


@contextlib.contextmanager
def started(**wanted: object) -> Iterator[Load]:
    """Start fake ranks and their observer, by the options of this program, and end them with the block.

    They are in a folder of runs of their own, for all commands of this process; without `seconds` they live as long
    as the block.
    """
    flags = ["--tied"]
    for name, value in {"seconds": 1e6, **wanted}.items():
        flag = f"--{name.replace('_', '-')}"
        if value is not False:
            flags += [flag] if value is True else [flag, str(value)]
    # A benchmark that is told to end has to end these processes first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    before = os.environ.get(rundir.BASE_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="dl-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ[rundir.BASE_VARIABLE] = folder
        leader = subprocess.Popen(
            [sys.executable, __file__, *flags], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            assert leader.stdout is not None
            words = leader.stdout.readline().split()
            if not words:
                raise SystemExit(f"the fake ranks did not start (exit code {leader.wait()})")
            load = Load(rundir.find(words[-1]), leader)
            try:
                yield load
            finally:
                load.close()
        finally:
            if leader.poll() is None:
                os.killpg(leader.pid, signal.SIGKILL)
                leader.wait()
            os.environ.pop(rundir.BASE_VARIABLE)
            if before is not None:
                os.environ[rundir.BASE_VARIABLE] = before


def read_made(folder: Path) -> dict[int, dict[int, tuple[int, int, float]]]:
    """Return by rank and number the steps that the ranks have made: end, wall time and loss."""
    found: dict[int, dict[int, tuple[int, int, float]]] = {}
    for file in folder.glob("made-*"):
        content = file.read_bytes()
        for rank, seq, end_ns, wall_ns, loss in MADE.iter_unpack(content[: len(content) // MADE.size * MADE.size]):
            found.setdefault(rank, {})[seq] = (end_ns, wall_ns, loss)
    return found


def recorded(database: Path) -> int:
    """Return the records that the ranks have sent and the recording has known, by their numbers."""
    return sum(seq for _, seq in recording.last_recorded(database).values())


def with_bytecode() -> dict[str, str]:
    """Return the environment for a command that is timed: an installed ddptop has bytecode, and compiles nothing."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def allow_files() -> None:
    """Let this process and its children open as many files as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(description="fake ranks that speak the real wire protocol, and their observer")
    options.add_argument("--world", type=int, default=64)
    options.add_argument("--rate", type=float, default=10.0, help="messages with steps a second, each rank; 0: none")
    options.add_argument("--step-ms", type=float, default=100.0, help="a step, the delay of a slow rank included")
    options.add_argument("--past", type=int, default=0, help="steps that each rank has done before, as recorded")
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--slow", type=float, default=0.22, help=f"delay of rank {SLOW}, as a share of the step")
    options.add_argument("--slow-after", type=float, default=0.0, help="seconds without that delay")
    options.add_argument("--keep", action="store_true", help="ranks keep what they send, to fill gaps")
    options.add_argument("--made", default="", help="folder in which ranks note each step that they make")
    options.add_argument("--run-mib", type=int, help="room of the run on disk; otherwise the default")
    options.add_argument("--tied", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--as", dest="name", help=argparse.SUPPRESS)
    options.add_argument("--from", dest="first", type=int, help=argparse.SUPPRESS)
    return options


def main() -> int:
    """Begin, or be some of the ranks."""
    options = parser().parse_args()
    allow_files()
    if options.name is None:
        return lead(options)
    last = min(options.world, options.first + RANKS_A_PROCESS)
    work(RunDir(rundir.base() / options.name), range(options.first, last), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
