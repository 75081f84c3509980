"""Fake ranks that speak the real wire protocol, any number from a few processes.

    python tests/bench/load.py --world 1024 --rate 10 [--step-ms 100] [--past 0] [--seconds 60]

Each of them has its own sockets, its member record in a run directory of its own name, and
sends what an agent sends: Hello to newcomers, a Beat and a Summary a second, and its step
records `--rate` times a second; it answers Fill from a real history.  Nobody trains.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import secrets
import signal
import subprocess
import sys
import time
from typing import Any

import zmq

from ddptop.agent import wire
from ddptop.agent.rank.records.digest import Digest
from ddptop.agent.rank.records.history import History
from ddptop.agent.run import rundir
from ddptop.agent.run.files.private import seal
from ddptop.agent.run.rundir import Member, Run, RunDir

SLOW = 17
"""The rank whose data loading takes longer, in groups that are large enough to have it."""
RANKS_A_PROCESS = 512
BUCKETS = 4


class FakeRank:
    """One rank's sockets and records."""

    def __init__(self, context: zmq.Context[Any], directory: RunDir, run: Run, rank: int, step_ns: int) -> None:
        self.rank = rank
        self.sent = 0
        self._run = run
        self._step_ns = step_ns
        self._rng = random.Random(rank)
        self._seq = 0
        self._digest = Digest(rank)
        self._told: bytes | None = None
        self.history = History(rank)
        self._hello = wire.Hello(
            wire.PROTOCOL, run.run, run.run_id, rank, rank % 8, run.world, os.getpid(), run.created_at_ns,
            f"node-{rank // 8:03d}", run.program, "bench", "3.11",
        )  # fmt: skip
        self.pub, self.cmd = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        for socket, kind in ((self.pub, "pub"), (self.cmd, "cmd")):
            socket.linger = 0
            socket.maxmsgsize = wire.MAX_COMMAND_BYTES
            socket.bind(directory.address(rank, kind))
            seal(directory.address(rank, kind))
        self.pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        me = rundir.identify(os.getpid())
        assert me is not None
        directory.write_member(
            Member(
                rank=rank,
                local_rank=rank % 8,
                world=run.world,
                process=me,
                host=self._hello.host,
                generation=0,
                pub=directory.address(rank, "pub"),
                cmd=directory.address(rank, "cmd"),
                log=None,
            )
        )

    def train(self, steps: int, end_ns: int) -> list[wire.Step]:
        """Return the records of the next steps, the last of which ends at `end_ns`."""
        return [self._step(end_ns - (steps - 1 - index) * self._step_ns) for index in range(steps)]

    def _step(self, end_ns: int) -> wire.Step:
        self._seq += 1
        wall = self._step_ns
        data = int(wall * (0.32 if self.rank == SLOW else self._rng.uniform(0.08, 0.12)))
        forward, backward, optimizer = int(wall * 0.2), int(wall * 0.35), int(wall * 0.05)
        other = int(wall * 0.02)
        calls = tuple(
            wire.Collective("all_reduce", forward + 10_000 * index, int(wall * 0.05), 1 << 22, 1)
            for index in range(BUCKETS)
        )
        step = wire.Step(
            self._seq, self._seq, end_ns, wall, data, forward, backward, optimizer,
            wall - data - forward - backward - optimizer - other, other,
            2.5 / (1 + self._seq / 500) + self._rng.uniform(0, 0.1), 32, calls, {"accuracy": self._rng.random()},
        )  # fmt: skip
        self._digest.add(step)
        return step

    def publish(self, steps: list[wire.Step]) -> None:
        """Send records."""
        self._send(wire.TOPIC_STEPS, wire.encode(wire.Steps(self.rank, tuple(steps))))

    def beat(self) -> None:
        """Send a sign of life and a summary."""
        now = time.time_ns()
        summary = self._digest.close()
        if summary is not None:
            self._told = wire.encode(summary)
            self._send(wire.TOPIC_SUMMARY, self._told)
        self._send(
            wire.TOPIC_BEAT,
            wire.encode(
                wire.Beat(
                    self.rank,
                    now,
                    "running",
                    "backward",
                    self._seq,
                    now,
                    self._seq,
                    memory_bytes=self._rng.randrange(800, 900) << 20,
                    cpu_percent=95.0,
                    device="cpu",
                    backend="gloo",
                    total_steps=1_000_000,
                    mechanism="process-group hooks",
                )
            ),
        )

    def serve(self) -> None:
        """Greet newcomers, answer commands."""
        try:
            while True:
                if self.pub.recv(zmq.NOBLOCK)[:1] == b"\x01":
                    self._send(wire.TOPIC_HELLO, wire.encode(self._hello))
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
                    for answer in self.history.since(command.first_seq, command.limit, command.earlier):
                        self.cmd.send_multipart([peer, answer])
                self.cmd.send_multipart([peer, wire.encode(wire.Reply(command.id, True, "", self._seq))])
        except zmq.Again:
            pass

    def _send(self, topic: bytes, payload: bytes) -> None:
        self.pub.send_multipart([topic, payload])
        self.sent += 1


def work(directory: RunDir, ranks: range, options: argparse.Namespace) -> None:
    """Be these ranks until the time is over."""
    run = directory.read()
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * len(ranks) + 64)
    step_ns = int(options.step_ms * 1e6)
    fakes = [FakeRank(context, directory, run, rank, step_ns) for rank in ranks]
    began = time.time_ns()
    for fake in fakes:
        for step in fake.train(options.past, began):
            fake.history.add(step)
        fake.beat()
    (directory.path / f"ready-{ranks.start}").touch()
    # Every rank has its own moment within a period, as on a real machine.
    due = [(index / len(fakes)) / options.rate for index in range(len(fakes))]
    beat_due = [index / len(fakes) for index in range(len(fakes))]
    owed = [0.0] * len(fakes)
    start = time.monotonic()
    served = 0.0
    a_message = 1 / options.rate / (options.step_ms / 1e3)
    while (now := time.monotonic() - start) < options.seconds:
        for index, fake in enumerate(fakes):
            if now >= due[index]:
                due[index] += 1 / options.rate
                owed[index] += a_message
                whole = int(owed[index])
                if whole:
                    owed[index] -= whole
                    steps = fake.train(whole, time.time_ns())
                    if options.keep:
                        for step in steps:
                            fake.history.add(step)
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
    context.destroy(linger=0)


def begin(options: argparse.Namespace) -> tuple[RunDir, list[subprocess.Popen[bytes]]]:
    """Make the run and start its ranks; return once all are there."""
    name = f"load-{secrets.token_hex(3)}"
    run = Run(
        run=name, run_id=secrets.token_hex(8), program="load", arguments=(), world=options.world, backend="gloo",
        device="cpu", created_at_ns=time.time_ns() - int(options.past * options.step_ms * 1e6), launched=False,
    )  # fmt: skip
    directory = rundir.create(run)
    processes = []
    for first in range(0, options.world, RANKS_A_PROCESS):
        command = [sys.executable, __file__, "--as", name, "--from", str(first)]
        for flag in ("world", "rate", "step_ms", "past", "seconds"):
            command += [f"--{flag.replace('_', '-')}", str(getattr(options, flag))]
        processes.append(subprocess.Popen(command + (["--keep"] if options.keep else [])))
    deadline = time.monotonic() + 120
    while len(list(directory.path.glob("ready-*"))) < len(processes):
        if time.monotonic() > deadline or any(process.poll() for process in processes):
            raise SystemExit("the fake ranks did not start")
        time.sleep(0.05)
    return directory, processes


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the fake ranks."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
        process.wait()


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    options = argparse.ArgumentParser(description="fake ranks that speak the real wire protocol")
    options.add_argument("--world", type=int, default=64)
    options.add_argument("--rate", type=float, default=10.0, help="messages with steps a second, each rank")
    options.add_argument("--step-ms", type=float, default=100.0)
    options.add_argument("--past", type=int, default=0, help="steps that each rank has done before")
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--keep", action="store_true", help="ranks keep what they send, to fill gaps")
    options.add_argument("--as", dest="name", help=argparse.SUPPRESS)
    options.add_argument("--from", dest="first", type=int, help=argparse.SUPPRESS)
    return options


def main() -> None:
    """Begin, or be some of the ranks."""
    options = parser().parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.name is not None:
        last = min(options.world, options.first + RANKS_A_PROCESS)
        work(RunDir(rundir.base() / options.name), range(options.first, last), options)
        return
    directory, processes = begin(options)
    print(f"ddptop attach {directory.name}", flush=True)
    for process in processes:
        process.wait()


if __name__ == "__main__":
    main()
