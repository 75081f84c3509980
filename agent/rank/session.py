"""The agent of one rank: its parts, its state, its beginning and end."""

from __future__ import annotations

import functools
import os
import platform
import socket
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from ddptop import agent
from ddptop.agent.decisions import Decisions
from ddptop.agent.presence import Presence
from ddptop.agent.rank.comms import Collectives
from ddptop.agent.rank.device import Gauges
from ddptop.agent.rank.faults import Faults
from ddptop.agent.rank.follower import Follower
from ddptop.agent.rank.gate import Gate, GateError, Saved
from ddptop.agent.rank.health import Health
from ddptop.agent.rank.publisher import Publisher
from ddptop.agent.rank.tape import Tape
from ddptop.agent.rundir import Ended, Member, Process, RunDir, RunDirError, identify
from ddptop.agent.version import VERSION
from ddptop.agent.wire import PROTOCOL, Beat, Hello


class Session:
    """Everything the agent knows inside one rank's process.

    The training thread writes through `tape`, `cut` and `hold`; the publisher's thread reads.
    Plain attributes carry the rest: each has one writer, and a reader may be a beat behind.
    """

    def __init__(self, directory: RunDir, *, run_id: str, program: str, log: str | None) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.faults = Faults()
        self.tape = Tape()
        self.gate = Gate()
        self.follower = Follower(self.gate, Decisions(directory.path), self.faults)
        self.health = Health()
        self.collectives = Collectives(self.tape, self.faults)
        self.sees_forward = False
        """True once DDP's forward was seen; until then the gap between data and backward is forward."""
        self.backward_on: Any = None
        """What `backward` was called on, while it runs."""
        self.device: str | None = None
        self.backend: str | None = None
        self.torch_version: str | None = None
        self.timeout_s: float | None = None
        """Timeout of collectives in the default process group."""
        self._checkpoint: agent.CheckpointFunction | None = None
        self._stopped = False
        self.directory = directory
        self._presence = Presence(directory, self.rank)
        self._gauges = Gauges()
        self._start_phase = "imports"
        self._ended = False
        self._total_steps: int | None = None
        self._note: str | None = None
        self._coordinates: dict[str, int] | None = None
        self.hello = Hello(
            protocol=PROTOCOL,
            run=directory.name,
            run_id=run_id,
            rank=self.rank,
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            world=int(os.environ.get("WORLD_SIZE", "1")),
            pid=os.getpid(),
            started_at_ns=time.time_ns(),
            host=socket.gethostname(),
            program=program,
            agent_version=VERSION,
            python_version=platform.python_version(),
            generation=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )
        self._member = Member(
            rank=self.rank,
            local_rank=self.hello.local_rank,
            world=self.hello.world,
            process=identify(os.getpid()) or Process(os.getpid(), time.time()),
            host=self.hello.host,
            generation=self.hello.generation,
            pub=directory.address(self.rank, "pub"),
            cmd=directory.address(self.rank, "cmd"),
            log=log,
        )
        self._publisher = Publisher(self, self._member.pub, self._member.cmd)

    def open(self) -> None:
        """Begin to listen and to publish, and say so in the run directory."""
        self._presence.begin()
        self._publisher.start()
        self.directory.write_member(self._member)
        agent._listener = self
        # A forked child (a data worker) has neither our thread nor our sockets.
        os.register_at_fork(after_in_child=self._forget)

    def close(self, exit_code: int, error: str | None, traceback: str | None) -> None:
        """Say how the script ended, publish what is left, and take the sockets away."""
        self._ended = True
        stopped_by = self.gate.ended_by if self._stopped and exit_code == 0 else None
        ended = Ended(time.time_ns(), exit_code, error, traceback, stopped_by, self.gate.completed)
        try:
            self.directory.write_member(msgspec.structs.replace(self._member, ended=ended))
        except OSError as problem:
            self.faults.note("saying how the rank ended", problem)
        self._publisher.stop()
        self._presence.end()

    @staticmethod
    def _forget() -> None:
        agent._listener = None

    def starting(self, phase: str) -> None:
        """Note what the script does before its first step."""
        self._start_phase = phase

    def cut(self) -> None:
        """End a step's record."""
        self.tape.cut(self.gate.completed + 1)

    def hold(self) -> None:
        """Count the step, and stay at its boundary while the group is paused.

        Raises:
            SystemExit: the run is being stopped; the script unwinds as if it had called `sys.exit(0)`.
        """
        if self.gate.boundary():
            self.tape.resume()
        if self.gate.ended_by is not None:
            self._stopped = True
            raise SystemExit(0)

    def announce(self, total_steps: int | None, note: str | None, coordinates: Mapping[str, int] | None) -> None:
        """See `ddptop.agent.start`."""
        self._total_steps = total_steps
        self._note = None if note is None else note[:200]
        if coordinates is not None:
            self._coordinates = {str(name)[:20]: int(where) for name, where in list(coordinates.items())[:8]}

    def log(self, metrics: dict[str, float]) -> None:
        """See `ddptop.agent.log`."""
        for name, value in metrics.items():
            if isinstance(value, (int, float)):
                self.tape.metric(name, float(value))
            else:
                self.faults.note("log", TypeError(f"{name} is {type(value).__name__}, not a number"))

    def register(self, save: agent.CheckpointFunction) -> None:
        """See `ddptop.agent.on_checkpoint`."""
        self._checkpoint = save

    @property
    def checkpoints(self) -> bool:
        """True where the script has said how to save a checkpoint."""
        return self._checkpoint is not None

    @property
    def stopped(self) -> bool:
        """True once the script was made to end at a step boundary."""
        return self._stopped

    def save(self, token: str) -> Saved | None:
        """Have the held training thread save a checkpoint; return what came of it, None meanwhile.

        Raises:
            GateError: nothing can be saved now.
        """
        save = self._checkpoint
        if save is None:
            raise GateError("its script has registered no checkpoint function (ddptop.agent.on_checkpoint)")
        return self.gate.save(token, functools.partial(self._call, save))

    def _call(self, save: agent.CheckpointFunction) -> Saved:
        began = time.monotonic_ns()
        try:
            where = save(self.gate.completed)
        except Exception as error:  # the script's own, told to whoever asked
            trouble = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            return Saved(False, trouble, time.monotonic_ns() - began)
        return Saved(True, "" if where is None else os.fspath(where)[:1000], time.monotonic_ns() - began)

    @property
    def state(self) -> str:
        """Of `starting`, `running`, `paused`, `ended`."""
        if self._ended:
            return "ended"
        if self.gate.held:
            return "paused"
        return "running" if self.tape.begun else "starting"

    def beat(self, seq: int, refused: int) -> Beat:
        """Return a sign of life; called by the publisher's thread."""
        self._presence.turn()
        state = self.state
        activity = {
            "starting": self._start_phase,
            "paused": "saving a checkpoint" if self.gate.working else f"held at step {self.gate.completed}",
            "ended": "its script has ended",
        }
        reading = self._gauges.read(self.device)
        return Beat(
            rank=self.rank,
            at_ns=time.time_ns(),
            state=state,
            activity=activity.get(state, self.tape.activity),
            step=self.gate.completed,
            step_at_ns=self.tape.completed_at,
            seq=seq,
            memory_bytes=reading.memory,
            memory_total_bytes=reading.memory_total,
            cpu_percent=reading.cpu,
            device_percent=reading.device,
            device=self.device,
            backend=self.backend,
            torch_version=self.torch_version,
            total_steps=self._total_steps,
            note=self._note,
            mechanism=self.collectives.mechanism,
            outstanding=self.collectives.outstanding,
            timed_every=self.collectives.timed_every,
            dropped=self.tape.dropped,
            refused=refused,
            faults=self.faults.count,
            fault=self.faults.last,
            health=self.health.trouble,
            held_at_ns=self.gate.held_at_ns if state == "paused" else None,
            timeout_s=self.timeout_s,
            checkpoints=self.checkpoints,
            coordinates=self._coordinates,
            generation=self.hello.generation,
        )


def open_session(directory: RunDir, program: str, run_id: str, log: str | None) -> Session | None:
    """Start the agent of this process; None where it cannot, which never hurts the training."""
    try:
        session = Session(directory, run_id=run_id, program=program, log=log)
        session.open()
    except (OSError, RunDirError, ValueError) as error:
        print(f"ddptop: no agent in this rank ({error}); the training goes on without", flush=True)
        return None
    return session
